"""This package has compiled loops that several packages use."""
