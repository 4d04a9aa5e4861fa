"""Commands for training, reviews and checks of the project; run them with `python -m scripts.NAME`."""
