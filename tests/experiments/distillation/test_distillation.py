"""Distillation in miniature: data from an HMM that is known, answers of a language model that is
tiny, runs that are interrupted, and two processes in place of one.
"""

from __future__ import annotations

import collections
import json
import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from experiments import config as configuration
from experiments.distillation import data as distill_data
from experiments.distillation import sampling as distill_sampling
from experiments.distillation import task as distill_task
from experiments.distillation import training as distill_training
from experiments.distillation.data import Sequences
from experiments.distillation.prefixes import after_each_token
from experiments.distillation.prompts import SOURCES, PromptSource
from experiments.distillation.task import TASK
from experiments.distillation.training import Schedule
from experiments.models import ModelConfig, load_model
from experiments.tasks import run_task
from experiments.tool_calling.task import read_xlam
from gcd import Vocabulary
from hmm import _inference as inference
from hmm import em_step
from hmm._checkpoint import load
from hmm._model import HMM
from smc import HMMLanguageModel
from smc.testing import ToyLM
from tests import processes
from tests.experiments import composing
from tests.experiments.toy_model import write_checkpoint

ROOT = Path(__file__).resolve().parents[3]
REQUESTS = ROOT / "tests" / "experiments" / "tool_calls.jsonl"
RECORDS = f"records.path={REQUESTS}"
V, EOS = 257, 256  # of the tiny language model
SMALL = ["num_states=20", "batch_size=80", "epochs=4", "held_out=0.2"]


def composed(*overrides: object):
    configuration.register()
    distill_task.register()
    return composing.composed(*overrides, name="distill_hmm")


def run(*overrides: object) -> Path:
    return run_task(TASK, composed(*overrides))


def common(lm: Path) -> list[str]:
    return [f"model.path={lm}", "model.device=cpu", "wandb=disabled", RECORDS]


def model_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "hmm" / "hmm.safetensors")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def truth() -> HMM:
    """An HMM over the tokens of the tiny language model, that writes eleven of them and EOS."""
    generator = torch.Generator().manual_seed(3)
    small = HMM.random(6, 12, generator=generator, concentration=0.15, dtype=torch.float64)
    emission = torch.zeros(V, 6, dtype=torch.float64)
    emission[[EOS, *range(1, 12)]] = small.emission
    return HMM(small.initial, small.transition, emission)


@pytest.fixture(scope="module")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained language model, to which all tokens are about the same."""
    return write_checkpoint(tmp_path_factory.mktemp("lm") / "tiny", spread=0.02)


@pytest.fixture(scope="module")
def known(truth: HMM) -> Sequences:
    """500 sequences of the known HMM, as if the language model had answered them."""
    eos = Vocabulary.from_bytes([b"%d" % i for i in range(EOS)] + [b""], [EOS])
    lm = HMMLanguageModel(truth, eos)
    generator = torch.Generator().manual_seed(4)
    return distill_sampling.sample_batch(lm, [[1]] * 500, 24, generator, top=64)


@pytest.fixture
def answers(known: Sequences, tiny_lm: Path, monkeypatch) -> list[str]:
    """The settings of a run whose language model has answered with these sequences."""
    monkeypatch.setattr(distill_task, "_sample", lambda *_: known)
    return common(tiny_lm)


# The whole of it


def test_what_is_learned_is_near_the_truth_and_the_report_says_so(
    tmp_path, answers, known, truth, monkeypatch
):
    monkeypatch.setattr(distill_training, "EVALUATIONS", 4)
    run_dir = run(*answers, *SMALL, f"run_dir={tmp_path / 'run'}", "epochs=20")
    summary = json.loads((run_dir / "summary.json").read_text())
    nats = summary["nats_per_token"]
    assert set(nats) == {"unigram", "bigram", "HMM", distill_task.LM}
    assert nats["unigram"] < nats["bigram"] < 0
    assert nats["HMM"] > nats["unigram"] + 0.1

    # The figure is that of the model on disk, on sequences that were not trained on.
    training, held_out = distill_data.split(known, 0.2, 0)
    assert (len(training), len(held_out)) == (400, 100)
    rows = held_out.batch(torch.arange(len(held_out)))
    stored = load(run_dir / "hmm", num_tokens=V)
    mean = float(inference.log_likelihood(stored.hmm, *rows).sum()) / held_out.num_tokens
    assert nats["HMM"] == pytest.approx(mean, abs=1e-5)
    assert stored.config["eos_token_id"] == [EOS]
    best = float(inference.log_likelihood(truth, *rows).sum()) / held_out.num_tokens
    assert nats[distill_task.LM] == pytest.approx(best)
    assert nats["HMM"] < best + 0.02
    assert nats["HMM"] > best - 0.15

    curve = json.loads((run_dir / "curve.json").read_text())
    assert curve[0]["step"] == 0
    assert curve[-1]["step"] == summary["steps"] == 1 + 18 * 5 + 1
    assert curve[-1]["held_out"] == pytest.approx(nats["HMM"], abs=0.02)  # bfloat16
    table = (run_dir / "table.md").read_text()
    assert re.search(rf"\| HMM +\| {nats['HMM']:.4f} +\|", table)
    assert load(run_dir / "hmm").hmm.num_states == summary["num_states"] <= 20
    assert (run_dir / "curve.png").stat().st_size > 1000


@pytest.fixture(scope="module")
def whole(known: Sequences, tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of nine steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill_task, "_sample", lambda *_: known)
        return run(*common(tiny_lm), *SMALL, f"run_dir={tmp_path_factory.mktemp('whole')}")


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    whole, tmp_path, answers, monkeypatch, caplog
):
    # Checkpoints of the first seven steps: the others are taken again.
    step, write, steps, written = em_step, distill_training.write_checkpoint, [], []

    def interrupted(*args, **kwargs):
        steps.append(1)
        if len(steps) == 10:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    def written_at_first(*args):
        written.append(1)
        if len(written) <= 1 + 7:  # of step 0, too
            write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(distill_training, "em_step", interrupted)
        patch.setattr(distill_training, "write_checkpoint", written_at_first)
        patch.setattr(distill_training, "SAVE_SECONDS", 0)
        with pytest.raises(KeyboardInterrupt):
            run(*answers, *SMALL, f"run_dir={tmp_path}")
    said = f"interrupted: the same command goes on from what is done in {tmp_path}"
    assert said in caplog.text
    assert not (tmp_path / "hmm").exists()
    saved = load_file(tmp_path / "checkpoint" / "step.safetensors")["step"]
    assert int(saved) == 7
    assert json.loads((tmp_path / "curve.json").read_text())[-1]["step"] == 9
    run(*answers, *SMALL, f"run_dir={tmp_path}")
    assert same(model_of(whole), model_of(tmp_path))
    assert (whole / "curve.json").read_text() == (tmp_path / "curve.json").read_text()
    # Another run's directory is refused, unless it is started over; another seed gives another HMM.
    with pytest.raises(ValueError, match="seed was 0, is 1"):
        run(*answers, *SMALL, f"run_dir={tmp_path}", "seed=1")
    run(*answers, *SMALL, f"run_dir={tmp_path}", "seed=1", "resume=false")
    assert not same(model_of(whole), model_of(tmp_path))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("checkpoint/step.safetensors", "remove it to restart training"),
        ("curve.json", "remove it"),
        ("identity.json", "resume=false to start this one over"),
    ],
)
def test_damaged_files_of_a_run_are_named_with_the_way_out(whole, answers, name, remedy):
    content = (whole / name).read_bytes()
    cut(whole / name)
    with pytest.raises(ValueError, match=rf"{name} cannot be read \(.*\); .*{remedy}"):
        run(*answers, *SMALL, f"run_dir={whole}")
    (whole / name).write_bytes(content)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, tiny_lm):
    settings = (*common(tiny_lm), *SMALL, "num_sequences=150", "max_length=5", "sample_batch=25")
    one = run(*settings, f"run_dir={tmp_path / 'a' / 'one'}")
    two = tmp_path / "b" / "two"
    done = processes.run("-m", "scripts.distill_hmm", *settings, f"run_dir={two}", count=2)
    assert done.returncode == 0, done.stderr
    expected, found = model_of(one), model_of(two)
    for name in expected:
        np.testing.assert_allclose(
            found[name].float(), expected[name].float(), rtol=1e-2, atol=1e-4
        )
    curves = [json.loads((path / "curve.json").read_text()) for path in (one, two)]
    for mine, theirs in zip(*curves, strict=True):
        assert mine["held_out"] == pytest.approx(theirs["held_out"], abs=1e-5)


# Sampling


def test_answers_have_the_language_models_law():
    """Frequencies against enumeration, their log-probabilities, and where they end."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"", b""], eos_ids=[2, 3])
    lm = ToyLM(vocabulary, seed=5)
    num, longest = 4000, 3
    generator = torch.Generator().manual_seed(0)
    sampled = distill_sampling.sample_batch(lm, [[0, 1]] * num, longest, generator)
    answers = [tuple(sampled.sequence(row)) for row in range(num)]
    said = dict(zip(answers, sampled.log_likelihood.tolist(), strict=True))
    counts = collections.Counter(answers)
    chi_square = float(num)
    for answer, count in counts.items():
        assert not {2, 3} & set(answer[:-1])
        assert answer[-1] in (2, 3) or len(answer) == longest
        prefixes = [(0, 1, *answer[:t]) for t in range(len(answer))]
        log_p = sum(float(lm.log_p(p)[v]) for p, v in zip(prefixes, answer, strict=True))
        assert said[answer] == pytest.approx(log_p, abs=1e-12)
        # Answers that never came belong to the sum too, with their expected counts.
        expected = num * math.exp(log_p)
        chi_square += (count - expected) ** 2 / expected - expected
    assert chi_square < 100  # 21 degrees of freedom: chance goes beyond 70 once in a million times


def test_questions_to_databases_can_be_answered_too(tiny_lm):
    _, tokenizer = load_model(ModelConfig(path=str(tiny_lm), device="cpu"))
    folder = ROOT / "data" / "sql"
    config = composed("source=sql", f"records.path={folder}", "model.prompt=compact")
    prompts = SOURCES["sql"].token_ids(config, 30, tokenizer)
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    asked = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    known = [next(q for q in asked if f"Question: {q['question']}\nSQL:" in text) for text in texts]
    assert len({question["question"] for question in known}) == 30
    assert len({question["db_id"] for question in known}) == 5


def test_concepts_are_told_in_turn(tiny_lm, tmp_path):
    _, tokenizer = load_model(ModelConfig(path=str(tiny_lm), device="cpu"))
    file = tmp_path / "train.tsv"
    sets = ("dog ball park", "cat tree sit", "boat lake row", "man bread eat")
    file.write_text("".join(f"{each}\tThe {each} are here to be seen.\n" for each in sets))
    config = composed(
        "source=commongen", f"records.path={file}", "model.prompt=compact",
        "told=[none,some,none,all]",
    )  # fmt: skip
    source = SOURCES["commongen"]
    heads = [tokenizer.decode(p).split("\n")[0] for p in source.token_ids(config, 9, tokenizer)]
    assert [head.count(",") for head in heads] == [0, 1, 0, 2]
    assert heads[0] == heads[2]
    assert "dog" not in heads[0]


def test_interrupted_and_shared_sampling_give_the_same_answers(tmp_path, tiny_lm):
    lm, tokenizer = load_model(ModelConfig(path=str(tiny_lm), device="cpu"))
    prompts = SOURCES["xlam"].token_ids(composed("style=both", RECORDS), 5, tokenizer)
    texts = [tokenizer.decode(prompt) for prompt in prompts]
    assert [text.endswith("JSON:\n") for text in texts] == [True, False, True, False, True]
    queries = [record.query for record in read_xlam(REQUESTS).records[:3]]
    assert all(queries[i // 2] in text for i, text in enumerate(texts))

    options = {"max_length": 4, "batch": 3, "seed": 0}
    distill_sampling.sample_to(tmp_path / "a", lm, prompts, 11, **options)
    whole = distill_data.read(tmp_path / "a")
    # Prompts come round again, and their answers stay on one side of a split.
    assert sorted(whole.groups.tolist()) == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    training, held_out = distill_data.split(whole, 0.4, 0)
    assert not set(training.groups.tolist()) & set(held_out.groups.tolist())
    assert all(whole.prompt(row) == prompts[int(whole.groups[row])] for row in range(11))

    for rank in (1, 0):
        distill_sampling.sample_to(tmp_path / "b", lm, prompts, 11, **options, rank=rank, world=2)
    (tmp_path / "a" / "000001.safetensors").unlink()
    distill_sampling.sample_to(tmp_path / "a", lm, prompts, 11, **options)
    for directory in ("a", "b"):
        again = distill_data.read(tmp_path / directory)
        assert all(
            torch.equal(getattr(again, name), getattr(whole, name)) for name in distill_data.ARRAYS
        )

    # The values known while sampling equal those of one forward pass over the whole sequence.
    with torch.inference_mode():
        for row in (0, 10):
            prompt, answer = whole.prompt(row), whole.sequence(row)
            log_p = lm.model(torch.tensor([prompt + answer])).logits[0].log_softmax(dim=-1)
            said = log_p[len(prompt) - 1 : -1].gather(1, torch.tensor(answer).unsqueeze(1))
            assert float(whole.log_likelihood[row]) == pytest.approx(float(said.sum()), abs=1e-4)

    options["max_length"] = 9000
    with pytest.raises(ValueError, match="prompts that leave max_length=9000 tokens"):
        distill_sampling.sample_to(tmp_path / "c", lm, prompts, 11, **options)


@pytest.mark.parametrize(("init", "epochs"), [("latent", 3), ("clones", 0)])
def test_from_a_language_model_to_an_hmm(tmp_path, tiny_lm, init, epochs, monkeypatch):
    """Of the prompts of a task of ours; and of a toy's, which is an entry and has no files."""
    used, source = [], [RECORDS]

    def spy(sequences, *rest):
        used.append(len(sequences))
        return after_each_token(sequences, *rest)

    def counted(config, num, tokenizer):
        used.append(num)
        return [[5, 6], [7]]

    if init == "latent":
        pytest.importorskip("faiss")
        monkeypatch.setattr(distill_task, "after_each_token", spy)
        monkeypatch.setattr(distill_task, "_LATENT", 7)
    else:
        monkeypatch.setitem(SOURCES, "toy", PromptSource(counted))
        source = ["source=toy"]
    settings = (
        *common(tiny_lm)[:-1], *source, f"run_dir={tmp_path / 'run'}", f"init={init}",
        f"epochs={epochs}", "num_sequences=12", "max_length=5", "sample_batch=6", "num_states=4",
        "held_out=0.2", "answers_per_prompt=2",
    )  # fmt: skip
    logged: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr("experiments.tracking.log", lambda *_, **given: logged.update(given))
        run_dir = run(*settings)
    if epochs:
        assert {"nats/held_out", "nats/training"} <= logged["history"][-1].keys()
        assert logged["figures"] == {"curve": run_dir / "curve.png"}
        assert logged["tables"]["table"]
        assert used == [7]  # latent variables come from so many sequences
    nats = json.loads((run_dir / "summary.json").read_text())["nats_per_token"]
    # Untrained, it says nearly nothing: uniform over its 257 tokens.
    assert nats["language model, reading the prompt"] == pytest.approx(-math.log(257), abs=0.3)
    vocabulary = load_model(ModelConfig(path=str(tiny_lm), device="cpu"))[0].vocabulary
    stored = load(run_dir / "hmm", vocabulary=vocabulary)
    assert stored.hmm.num_states == 4
    assert stored.config["eos_token_id"] == [256]
    assert stored.config["vocabulary_digest"] == vocabulary.fingerprint.hex()
    first = model_of(run_dir)
    if init == "clones":
        # Saved once more, with less to say of rare tokens; nothing is trained again.
        run(*settings, "save_pooled=9")
        small = load(run_dir / "hmm", vocabulary=vocabulary).hmm
        assert len(small.emission.unique(dim=0)) < len(stored.hmm.emission.unique(dim=0))
        table = (run_dir / "table.md").read_text()
        assert "seen at most 9 times" in table
        assert "to prompts of toy." in table
        assert set(used) == {6}  # two answers to each
        assert torch.equal(small.transition.factors[0], stored.hmm.transition.factors[0])
    # Tokens that never occur have the same emissions.
    (sampled,) = tmp_path.glob("sequences-*")
    answers = distill_data.read(sampled)
    assert answers.groups.unique(return_counts=True)[1].min() >= 2  # answers to each prompt
    own = len({*answers.tokens.tolist(), 256})
    assert 2 < len(first["emission"].float().unique(dim=0)) <= own + 1
    unseen = torch.ones(257, dtype=torch.bool)
    unseen[answers.tokens] = unseen[256] = False
    assert len(stored.hmm.emission[unseen].unique(dim=0)) == 1
    curve = json.loads((run_dir / "curve.json").read_text())
    assert curve[-1]["step"] == epochs

    # A second run in another directory finds the answers; the same seed gives the same model.
    files = sorted(sampled.iterdir())
    times = [path.stat().st_mtime_ns for path in files]
    shutil.rmtree(run_dir)
    if init == "clones":  # A damaged file of answers is named, and made again.
        cut(files[1])
        with pytest.raises(ValueError, match=r"000001\.safetensors .*; remove it, and its answers"):
            run(*settings)
        files[1].unlink()
    run(*settings)
    again = [path.stat().st_mtime_ns for path in sorted(sampled.iterdir())]
    assert [a == b for a, b in zip(again, times, strict=True)] == [True, init == "latent"]
    assert same(first, model_of(run_dir))


# Parts


def test_every_step_of_a_pass_sees_other_sequences():
    schedule = Schedule(num=10, epochs=4, batch_size=3, seed=0)
    assert schedule.total == 1 + 2 * 3 + 1
    everything = list(range(10))
    for step in (0, 7):
        rows, size = schedule.rows(step)
        assert (rows.tolist(), size) == (everything, 1.0)
    passes = []
    for epoch in range(2):
        steps = [schedule.rows(1 + 3 * epoch + k) for k in range(3)]
        seen = [row for rows, _ in steps for row in rows.tolist()]
        assert len(set(seen)) == 9
        passes.append(seen)
        assert [size for _, size in steps] == [(3 + 3 * epoch + k) ** -0.7 for k in range(3)]
    assert passes[0] != passes[1]


def test_baselines_against_plain_counting():
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 5, size=rng.integers(1, 9)).tolist() for _ in range(40)]
    training = Sequences.from_lists(lists[:30])
    held_out = Sequences.from_lists([*lists[30:], [5]])  # a token that training has not
    found = distill_task.compare(training, held_out, 6)

    tokens = [token for row in lists[:30] for token in row]
    single = [(tokens.count(v) + 0.5) / (len(tokens) + 3) for v in range(6)]
    pairs = collections.Counter(
        pair for row in lists[:30] for pair in zip(["start", *row[:-1]], row, strict=True)
    )
    contexts = collections.Counter(u for u, _ in pairs.elements())
    rows = [*lists[30:], [5]]

    def mean(p) -> float:
        values = [
            math.log(p(u, v))
            for row in rows
            for u, v in zip(["start", *row[:-1]], row, strict=True)
        ]
        return sum(values) / len(values)

    def smoothed(m: float) -> float:
        return mean(lambda u, v: (pairs[u, v] + m * single[v]) / (contexts[u] + m))

    assert found.unigram == pytest.approx(mean(lambda u, v: single[v]), abs=1e-12)
    assert found.bigram == pytest.approx(max(map(smoothed, distill_task.STRENGTHS)), abs=1e-12)
    assert smoothed(found.strength) == pytest.approx(found.bigram, abs=1e-12)


def test_sequences_are_kept_in_files(tmp_path):
    lists, prompts = [[1, 2], [3], [4, 5, 6]], [[7], [8, 9], [7]]
    distill_data.save(Sequences.from_lists(lists, prompts, [-1.5] * 3), tmp_path / "a.safetensors")
    read = distill_data.read(tmp_path)
    assert [read.sequence(row) for row in range(3)] == lists
    assert [read.prompt(row) for row in range(3)] == prompts
    assert read.log_likelihood.tolist() == [-1.5] * 3
    some = read.take(torch.tensor([2, 0]))
    assert [some.sequence(row) for row in range(2)] == [[4, 5, 6], [1, 2]]
    assert [some.prompt(row) for row in range(2)] == [[7], [7]]
    tokens, lengths = some.batch(torch.tensor([1, 0]))
    assert (tokens.tolist(), lengths.tolist()) == ([[1, 2, 0], [4, 5, 6]], [2, 3])
    with pytest.raises(ValueError, match=r"expected enough prompts for a part of .*, got 1;"):
        distill_data.split(Sequences.from_lists([[1]]), 0.5, 0)
    save_file({"tokens": torch.ones(3)}, tmp_path / "0.safetensors")
    with pytest.raises(ValueError, match=r"0\.safetensors isn't a file of sampled .* 'lengths'"):
        distill_data.read(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_states=0"], "num_states to be at least 2, got 0"),
        (["init=best"], "expected init to be .*, got 'best'"),
        (["source=chess"], "expected source to be .*, got 'chess'"),
        (["answers_per_prompt=0"], "answers_per_prompt to be at least 1"),
        (["epochs=0", "batch_size=2"], "batch_size=2 would be ignored: with epochs=0"),
        (["style=xml"], "expected style to be .*, got 'xml'"),
        (["told=[most]"], "expected told to be one of all, some, none, got 'most'"),
        (["told=[]"], "told needs at least one of all, some, none"),
        (["told=[none]"], r"told=\['none'\] would be ignored: source=xlam does not read it"),
        (["source=sql", "style=python"], "style=python would be ignored: source=sql does not read"),
        (["held_out=0"], r"held_out to be in \(0, 1\), got 0"),
        (["epochs=1"], "epochs .* at least 2, got 1"),
        (["num_sequences=1"], "num_sequences to be at least 2"),
        (["records.path=a", "records.hub=b"], "got both"),
        (["model.path=./nowhere", RECORDS], "expected a checkpoint in model.path"),
        ([], "give records.path=FILE.jsonl in xLAM's form, or records.hub=NAME"),
        (["source=sql", "records.hub=a"], "give records.path=FOLDER of questions and schemas"),
    ],
)  # fmt: skip
def test_bad_values_are_named(overrides, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        run(*overrides)


def test_latent_variables_need_faiss(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="not installed"):
        run("init=latent")


def test_faiss_is_imported_by_its_one_user_only():
    for package in ("gcd", "hmm", "smc", "experiments", "scripts"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"^(import|from) faiss", text, re.MULTILINE), path


def test_the_configuration_and_the_commands_of_the_pages_are_accepted(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # faiss, where there is none
    for page in ("docs/experiments.md", "docs/distillation.md"):
        text = re.sub(r"\\\n\s*", "", (ROOT / page).read_text("utf-8"))
        commands = re.findall(r"-m scripts\.distill_hmm ([^#\n]+)", text)
        assert commands
        for command in commands:
            distill_task.check(composed(*shlex.split(command)))
    config = composed(RECORDS)
    distill_task.check(config)
    assert OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert config.wandb.mode == "offline"
    with pytest.raises(ConfigCompositionException):
        composed("num_state=3")


def test_prompts_are_seen_to_before_there_is_a_directory(tmp_path, tiny_lm):
    damaged = tmp_path / "requests.jsonl"
    damaged.write_text("{}\n")
    with pytest.raises(ValueError, match=r"expected records with .* in .*requests"):
        run(f"model.path={tiny_lm}", f"records.path={damaged}", f"run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()
