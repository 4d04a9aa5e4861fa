"""This package has sampling and masks within `generate` of `transformers`."""
