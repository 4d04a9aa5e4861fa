"""Small compiled passes over all tokens, compared with plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd._serving.kernels.masks import pairs_of_classes

NUM_CLASSES = 5
classes = st.lists(st.integers(0, NUM_CLASSES - 1), max_size=150)


@settings(max_examples=50)
@given(classes)
def test_pairs_hold_the_tokens_of_each_class(class_of):
    start, words, bits, size, a_token = pairs_of_classes(np.array(class_of, np.int32), NUM_CLASSES)
    for c in range(NUM_CLASSES):
        tokens = [token for token, other in enumerate(class_of) if other == c]
        mine = slice(start[c], start[c + 1])
        assert words[mine].tolist() == sorted({token // 32 for token in tokens})
        found = [
            32 * int(word) + bit
            for word, row in zip(words[mine], bits[mine].view(np.uint32), strict=True)
            for bit in range(32)
            if int(row) >> bit & 1
        ]
        assert found == tokens
        assert size[c] == len(tokens)
        assert a_token[c] in (tokens or [0])
