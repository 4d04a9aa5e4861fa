"""Commands for maintainers of the project; run them with `python -m scripts.NAME`."""
