"""The shortcuts and measures of the benchmark of labels, against their definitions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from benchmarks.labels import Scored, accuracy, calibration_error, error, flips, shortcuts
from experiments.harness.config import ModelConfig
from experiments.harness.models import load_model

ROOT = Path(__file__).resolve().parents[2]


def test_shortcuts_are_those_of_the_canonical_tokens() -> None:
    lm, _ = load_model(ModelConfig(path=str(ROOT / "tests" / "models" / "stories260K")))
    prompts = ["Tom went to the", "Once"]
    options = [[" park", " parking", " zoo"], [" upon", " a"]]
    found = shortcuts(lm, prompts, options)
    segmentation = lm.vocabulary.segmentation
    assert segmentation is not None
    for place, (prompt, texts) in enumerate(zip(prompts, options, strict=True)):
        ids, firsts, means = lm.encode(prompt), [], []
        spelled = [segmentation.encode(text) for text in texts]
        for tokens in spelled:
            log_p = [
                float(lm.prefill([[*ids, *tokens[:t]]])[1][0, token])
                for t, token in enumerate(tokens)
            ]
            end = lm.prefill([[*ids, *tokens]])[1][0, list(lm.vocabulary.eos_ids)]
            means.append((sum(log_p) + float(end.logsumexp(0))) / (len(tokens) + 1))
            alike = sum(other[0] == tokens[0] for other in spelled)
            firsts.append(math.exp(log_p[0]) / alike)
        expected = [m / sum(firsts) for m in firsts]
        assert found["first token"][place] == pytest.approx(expected, rel=1e-4)
        weights = [math.exp(m) for m in means]
        expected = [w / sum(weights) for w in weights]
        assert found["length-normalized"][place] == pytest.approx(expected, rel=1e-4)


def test_measures() -> None:
    confidence = np.array([0.95, 0.93, 0.52, 1.0])
    is_right = np.array([True, False, True, True])
    # Bins: 0.95, 0.93 and 1.0 together (2 of 3 right), 0.52 alone.
    expected = (abs(0.95 + 0.93 + 1.0 - 2) + abs(0.52 - 1)) / 4
    assert calibration_error(confidence, is_right) == pytest.approx(expected)
    pairs = [
        [Scored("a", 0.95, True), Scored("b", 0.93, False)],
        [Scored("a", 0.52, True), Scored("a", 1.0, True)],
    ]
    assert error(pairs) == pytest.approx(expected)
    assert accuracy(pairs) == 0.75
    assert flips(pairs) == 0.5
