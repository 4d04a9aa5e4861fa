"""Hidden Markov models distilled from language models; see docs/design.md, section 7."""
