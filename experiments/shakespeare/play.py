"""A small play is made up of lines `NAME: words`, for a character-level model to learn."""

from __future__ import annotations

import random

NAMES = ["ADA", "BRUNO", "CELIA", "DUKE", "EDGAR", "FLORA", "GHOST", "HELENA", "IAGO", "JULIA"]

_GREETINGS = ["good morrow", "alas", "welcome", "farewell", "hark", "peace", "come hither", "hold"]
_SUBJECTS = ["my lord", "the queen", "our cousin", "the night", "this crown", "a gentle heart"]
_VERBS = ["loves", "fears", "forgets", "commands", "betrays", "remembers", "follows", "mourns"]
_OBJECTS = ["the moon", "thy father", "the storm", "an honest man", "the sea", "his own shadow"]
_ENDINGS = ["", "", " tonight", " no more", " with all my soul", " as summer loves the rose"]


def write_play(lines: int, seed: int) -> str:
    """Write a play of so many lines, the same for the same arguments."""
    rng = random.Random(f"play-{seed}")
    return "".join(f"{rng.choice(NAMES)}: {_speech(rng)}\n" for _ in range(lines))


def _speech(rng: random.Random) -> str:
    if rng.random() < 0.25:
        return rng.choice(_GREETINGS)
    parts = [rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS)]
    return " ".join(parts) + rng.choice(_ENDINGS)
