"""The warm-up compiles every kernel that Python calls, each for one choice of types, and no run
compiles another one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hmm.checkpoint import save
from hmm.model import HMM

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from gcd.support.compiled import _Files
from scripts import warm_up

def kernels():
    for name, module in sorted(sys.modules.items()):
        for function in vars(module).values() if ".kernels." in name else ():
            if isinstance(getattr(function, "_cache", None), _Files):  # a kernel, not a helper
                if function.py_func.__module__ == name:
                    yield f"{name}.{function.__name__}", function.signatures

for part in warm_up.PARTS:
    warm_up.warm_up(part)
warm = dict(kernels())
for name, signatures in warm.items():
    print(name, len(signatures))
"""
USES = """
import numpy as np
import torch
import gcd
from gcd_cli import sources
vocabulary = sources.vocabulary("tests/models/stories260K")
parts = [gcd.Segment(gcd.anything(), until="!", tokens=9), gcd.Segment(gcd.regex("(yes|no)?"))]
for language in (
    gcd.segments(parts), gcd.regex("[a-c]{2,9}(x|y)*"), gcd.keywords([["cat"], ["dog"]]),
    gcd.literal("ab") - gcd.literal("abc"), gcd.json_schema({"type": ["integer", "null"]}),
    gcd.sql(gcd.SqlSchema([gcd.Table("t", [gcd.Column("a", "number")])])),
):
    automaton = gcd.lift(language, vocabulary)
    automaton.check()
    matcher = gcd.GrammarMatcher(automaton, budget=90)
    row = torch.zeros(1, 16, dtype=torch.int32)
    matcher.fill_next_token_bitmask(row)
    matcher.find_jump_forward_string()
    matcher = gcd.Matcher(automaton, budget=90)
    token = int(automaton.allowed(automaton.initial)[0])
    for draft in ([token], np.array([token]), torch.tensor([token]).expand(1)):
        assert matcher.fill_draft_masks(draft, np.zeros((2, 16), np.int32)) == 1
        assert matcher.validate(draft) == 1
    assert matcher.advance(np.int32(token))
    matcher.rollback()
sets = [[5, 6], [7], [8, 9]]
gcd.Matcher(gcd.TokenAutomaton.from_position_sets(vocabulary, sets)).forced()
from experiments.run import main
main()
for name, signatures in kernels():
    for types in set(signatures) - set(warm.get(name, [])):
        print("not warm:", name, types)
"""
# Called from Python in tests alone, and by other kernels.
NOT_CALLED = {
    "gcd.automata.kernels.graph.distinct_edges",
    "gcd.automata.kernels.graph.levels",
    "gcd.automata.kernels.graph.reversed_edges",
    "gcd.automata.kernels.residuals.by_fingerprints",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What the warm-up compiled, and what uses of all parts ask for beyond that."""
    folder = tmp_path_factory.mktemp("run")
    random = HMM.random(8, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    save(random, folder / "hmm", config={"eos_token_id": [1, 2]})
    settings = [
        *("+task=xlam", "task.num_examples=2", "task.particles=[2]", "task.budget=tight"),
        *("task.max_calls=1", "task.methods=[lcd,gcd,pgcd]", "task.algorithms=[smc,discrete]"),
        *("wandb=disabled", "model.path=tests/models/stories260K", "model.device=cpu"),
        *("data.path=tests/experiments/requests.jsonl", f"hmm.path={folder / 'hmm'}"),
        *(f"run_dir={folder / 'run'}", f"hydra.run.dir={folder}"),
    ]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + USES, *settings],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )


def test_every_kernel_is_compiled_for_one_choice_of_types(
    done: subprocess.CompletedProcess[str],
) -> None:
    lines = [line.split() for line in done.stdout.splitlines() if ".kernels." in line]
    signatures = {line[0]: int(line[1]) for line in lines if len(line) == 2}
    assert len(signatures) > 40
    assert not {name for name, count in signatures.items() if count > 1}
    assert {name for name, count in signatures.items() if count == 0} <= NOT_CALLED


def test_a_run_after_the_warm_up_compiles_nothing(done: subprocess.CompletedProcess[str]) -> None:
    assert "Results:" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("not warm:")] == []
