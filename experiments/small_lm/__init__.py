"""The embedded language model: its architecture, its optimiser, its greedy answers."""
