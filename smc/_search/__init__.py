"""Search through the tree of token sequences: best answers and exact distributions."""
