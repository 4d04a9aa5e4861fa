"""The benchmark of EM runs, counts what it says, and says what is wrong with a copy of Ctrl-G."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import hmm as benchmark
from hmm.model import HMM

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--states", "8", "--vocab", "11", "--sequences", "4", "--length", "5", "--repeats", "1"]

STAND_IN = """
import torch
from hmm.em import expected_statistics
from hmm.model import HMM as Ours
from hmm.transition import Dense

class HMM:
    def __init__(self, hidden_states, vocab_size, eos_token_id):
        self.hidden_states, self.vocab_size = hidden_states, vocab_size

    def update_params(self, alpha_exp, beta, gamma):
        self.alpha_exp, self.beta, self.gamma = alpha_exp, beta, gamma

    def forward(self, input_ids):
        return Ours(self.gamma.exp(), Dense(self.alpha_exp), self.beta.exp().T.contiguous())

    def backward(self, input_ids, probs, alpha_flow, beta_flow, gamma_flow):
        lengths = torch.full((len(input_ids),), input_ids.shape[1])
        counts = expected_statistics(probs, input_ids, lengths)
        alpha_flow += counts.transition[0] / self.alpha_exp  # the uses of an entry, over the entry
        beta_flow[:-1] += counts.emission
        gamma_flow += counts.initial
"""
"""A model with the interface of Ctrl-G's."""


def copy_of_ctrlg(directory: Path, source: str) -> Path:
    (directory / "ctrlg").mkdir()
    (directory / "ctrlg" / "hmm.py").write_text(source, encoding="utf-8")
    return directory


def cells(output: str) -> list[list[str]]:
    """Of the table's rows, without its head."""
    table = [line for line in output.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_it_runs_by_the_command_of_its_page():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.hmm", *SMALL],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Ctrl-G is left out" in run.stdout
    assert [row[0] for row in cells(run.stdout)] == ["dense", "Monarch"]


def test_figures_of_a_row_fit_each_other(tmp_path, capsys):
    directory = copy_of_ctrlg(tmp_path, STAND_IN)
    benchmark.main([*SMALL, "--ctrlg", str(directory)])
    dense, monarch = cells(capsys.readouterr().out)
    assert dense[:3] == ["dense", "11", "8"]
    for row, operations in ((dense, 6 * 8**2), (monarch, 8 * 8 * 6)):
        seconds, speed, rate, plain, share = (float(cell.replace(",", "")) for cell in row[3:8])
        assert speed == pytest.approx(20 / seconds, rel=0.01)
        assert rate == pytest.approx(speed * operations / 1e9, rel=0.01)
        assert share == pytest.approx(rate / plain, abs=0.006)
    theirs, ratio = (float(cell.replace(",", "")) for cell in dense[8:])
    assert ratio == pytest.approx(float(dense[4].replace(",", "")) / theirs, abs=0.006)
    assert monarch[8:] == ["–", "–"]  # Ctrl-G has no such transitions


def test_products_are_of_the_operations_counted():
    """Forward, backward and counts are three of the products timed; each factor's has a part."""
    hmm = HMM.random(12, 5)
    assert 3 * benchmark.products(hmm, 4, 5)[0].operations == 20 * benchmark.operations_a_token(hmm)
    hmm = HMM.random(12, 5, monarch=3)
    both = sum(product.operations for product in benchmark.products(hmm, 4, 5))
    assert 4 * both == 20 * benchmark.operations_a_token(hmm)
    for product in benchmark.products(hmm, 4, 5):
        product.run()


def test_another_result_than_ours_is_no_comparison(tmp_path):
    wrong = STAND_IN.replace("self.alpha_exp  #", "self.alpha_exp ** 0.5  #")
    with pytest.raises(SystemExit, match="do not compute the same"):
        benchmark.main([*SMALL, "--ctrlg", str(copy_of_ctrlg(tmp_path, wrong))])


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (None, "does not exist; give the root of a copy"),
        ("import a_module_nobody_has", "a_module_nobody_has"),
        ("class Other: pass", "no attribute 'HMM'"),
    ],
)
def test_a_directory_without_ctrlg_is_refused(tmp_path, capsys, source, complaint):
    directory = tmp_path if source is None else copy_of_ctrlg(tmp_path, source)
    with pytest.raises(SystemExit):
        benchmark.main([*SMALL, "--ctrlg", str(directory)])
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--repeats", "0"], "at least one, not 0"),
        (["--dtype", "float64", "--ctrlg", "anywhere"], "float32"),
        pytest.param(
            ["--device", "cuda"],
            "sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, options, complaint):
    with pytest.raises(SystemExit):
        benchmark.main([*SMALL, *options])
    assert complaint in capsys.readouterr().err
