"""An adapter is the same however its training was cut or shared out; bad input is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from experiments.finetuning import config as finetune_config
from experiments.finetuning import task, training
from experiments.finetuning.training import rate, split
from experiments.harness import config as configuration
from experiments.harness import smollm2
from experiments.harness.config import ModelConfig
from experiments.harness.models import ROOT, identity_of, load_model
from experiments.harness.run import run_task
from tests import processes
from tests.experiments import composing
from tests.experiments.toy_model import write_checkpoint
from tests.experiments.wandb_files import stored_runs

STORIES = ROOT / "tests" / "models" / "stories260K"
COMMON = (
    "wandb=disabled", "model.device=cpu", "lora.rank=2", "epochs=2", "batch=3", "held_out=0.2",
    "learning_rate=0.02", "most_tokens=700",
)  # fmt: skip


def composed(*overrides: object):
    configuration.register()
    finetune_config.register()
    return composing.composed(*overrides, name="finetune_lm")


def run(*overrides: object) -> Path:
    return run_task(task.TASK, composed(*overrides))


def adapter_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "adapter" / "adapter_model.safetensors")


def curve_of(run_dir: Path) -> list[dict]:
    return json.loads((run_dir / "summary.json").read_text())["curve"]


@pytest.fixture(scope="module")
def given_(tmp_path_factory) -> tuple[str, ...]:
    """A toy model and ten short records."""
    directory = tmp_path_factory.mktemp("given")
    model = write_checkpoint(directory / "lm")
    lines = []
    for number in range(10):
        name = "fg"[number % 2]
        tool = {"name": name, "parameters": {"a": {"type": "int"}}}
        call = {"name": name, "arguments": {"a": number}}
        record = {"id": number, "query": f"{name} of {number}", "tools": [tool], "answers": [call]}
        lines.append(json.dumps(record))
    records = directory / "records.jsonl"
    records.write_text("\n".join(lines) + "\n")
    return (*COMMON, f"model.path={model}", f"paths=[{records}]")


@pytest.fixture(scope="module")
def whole(given_, tmp_path_factory) -> Path:
    where = f"run_dir={tmp_path_factory.mktemp('whole')}"
    return run(*given_, where, "wandb.mode=offline")


def test_what_comes_out_is_an_adapter_that_has_learned(given_, whole):
    assert [point["step"] for point in curve_of(whole)] == [0, 3, 6]  # 8 records in threes, twice
    first, *_, last = (point["held_out"] for point in curve_of(whole))
    assert last < 0.8 * first
    config = composed(*given_)
    adapter = whole / "adapter"
    assert {weight.dtype for weight in adapter_of(whole).values()} == {torch.float16}
    plain, _ = load_model(config.model)
    lm, _ = load_model(ModelConfig(path=config.model.path, adapter=str(adapter), device="cpu"))
    prompt = lm.encode("f(a: int)\nRequest: f of 3\nCalls in Python:\n")
    begun = lm.vocabulary.token_bytes.index(b"[")
    assert float(lm.prefill([prompt])[1][0, begun]) > float(plain.prefill([prompt])[1][0, begun])
    with pytest.raises(ValueError, match=f"was trained for {config.model.path}"):
        load_model(ModelConfig(path=str(STORIES), adapter=str(adapter), device="cpu"))


def test_its_curve_is_logged(whole):
    (logged,) = stored_runs(whole)
    points = [(row["step"], row["held_out"]) for row in logged.history]
    assert points == [(point["step"], point["held_out"]) for point in curve_of(whole)]


def test_its_card_describes_the_training_without_local_paths(given_, whole):
    card = (whole / "adapter" / "README.md").read_text()
    assert "trained on 8 records of `records.jsonl`" in card
    assert "2 records were held out" in card
    assert f"| 6 | {curve_of(whole)[-1]['held_out']:.4f} |" in card
    for text in ("lora.rank=2", "epochs=2", "paths=[records.jsonl]"):
        assert text in card
    assert str(whole) not in card
    base = json.loads((whole / "adapter" / "base.json").read_text())
    assert base["base"] == identity_of(composed(*given_).model.path)


def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(
    given_, whole, tmp_path, monkeypatch
):
    common = (*given_, f"run_dir={tmp_path}")
    run(*common, "stop_after=2")
    assert not (tmp_path / "adapter").exists()
    learn, steps = training.Trainer._learn, []

    def interrupted(self, chosen):
        steps.append(self.step)
        if self.step == 5:
            raise KeyboardInterrupt
        return learn(self, chosen)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_learn", interrupted)
        save = training.Trainer._save
        patch.setattr(training.Trainer, "_save", lambda self: self.step == 4 and save(self))
        with pytest.raises(KeyboardInterrupt):
            run(*common, "save_minutes=0")
    assert steps == [2, 3, 4, 5]
    run(*common)
    found, expected = adapter_of(tmp_path), adapter_of(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert curve_of(tmp_path) == curve_of(whole)


@pytest.mark.slow
def test_two_processes_equal_one(given_, whole, tmp_path):
    command = ("-m", "scripts.finetune_lm", *given_, f"run_dir={tmp_path}")
    done = processes.run(*command, count=2)
    assert done.returncode == 0, done.stderr
    found, expected = adapter_of(tmp_path), adapter_of(whole)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=2e-3, rtol=0)
    for mine, theirs in zip(curve_of(tmp_path), curve_of(whole), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5), st.integers(2, 70) | st.none())
def test_a_split_shares_everything_out(count, share, seed, most):
    items = [f"item {number}" for number in range(count)]
    found = split(items, share, seed, most)
    assert found == split(items, share, seed, most)
    assert found.training
    assert found.held_out
    assert not set(found.training) & set(found.held_out)
    used = min(count, most or count)
    assert len(found.training) + len(found.held_out) == used
    assert set(found.training) | set(found.held_out) <= set(items)
    assert abs(len(found.held_out) - share * used) <= 1


@given(st.integers(1, 300), st.floats(0, 0.99))
def test_the_rate_rises_and_falls(total, warm_up):
    rates = [rate(step, total, warm_up) for step in range(total)]
    first = max(1, round(warm_up * total))
    assert all(0 < each <= 1 for each in rates)
    assert rates[:first] == sorted(rates[:first])
    assert rates[first - 1 :] == sorted(rates[first - 1 :], reverse=True)
    assert max(rates) == 1


# Refusals.


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["source=poems"], "expected source to be one of xlam, commongen.*, got 'poems'"),
        (["paths=[]"], "at least one value in paths"),
        (["paths=[nowhere.jsonl]"], "files of records, but nowhere.jsonl does not exist"),
        (["paths=[pyproject.toml,pyproject.toml]"], "expected different values in paths"),
        (["limit=0"], "limit to be at least 1, got 0"),
        (["prompts=1"], "prompts to be at least 2, got 1"),
        (["lora.rank=0"], "lora.rank to be at least 1, got 0"),
        (["lora.alpha=0"], r"lora.alpha to be in \(0, infinity\), got 0"),
        (["learning_rate=0"], r"learning_rate to be in \(0, infinity\), got 0"),
        (["clip=inf"], r"clip to be in \(0, infinity\), got inf"),
        (["warm_up=1"], r"warm_up to be in \[0, 1\), got 1"),
        (["held_out=0"], r"held_out to be in \(0, 1\), got 0"),
        (["stop_after=-1"], "stop_after to be at least 0, got -1"),
        (["model.dtype=float16"], "float32 or bfloat16 for training, got float16"),
        (["model.adapter=runs/a"], "training begins with the model as .* model.adapter=runs/a"),
        (["model.prompt=chat"], "uses compact prompts; got model.prompt=chat"),
        (["model.prompt=song"], "expected model.prompt to be .*got 'song'"),
        (["seed=-1"], "seed to be at least 0, got -1"),
    ],
)
def test_bad_settings_are_named(given_, overrides, message, monkeypatch):
    monkeypatch.setattr(task, "load_model", None)
    with pytest.raises(ValueError, match=message):
        run(*given_, *overrides)


@pytest.mark.parametrize(
    ("source", "name", "content", "message"),
    [
        (
            "xlam",
            "a.jsonl",
            "{not json\n",
            "expected records with .* in .*a.jsonl, got 1 malformed",
        ),
        ("xlam", "a.json", "{}", "expected a list of records"),
        (
            "xlam",
            "a.jsonl",
            '{"query": "q", "tools": [], "answers": []}\n',
            "at least two usable records, got 0",
        ),
        ("commongen", "a.tsv", "dog park\tA dog.\n", "expected lines with 3 to 5 concepts.*a.tsv"),
        ("commongen", "a.tsv", b"\xff\t", "expected UTF-8 in .*a.tsv"),
    ],
)
def test_bad_files_are_named(given_, source, name, content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(task, "load_model", None)
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        run(*given_, f"source={source}", f"paths=[{path}]", f"run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_records_that_are_all_too_long_are_refused(given_, tmp_path):
    with pytest.raises(
        ValueError, match=r"held-out records of at most longest=20 tokens, but all 2"
    ):
        run(*given_, "longest=20", f"run_dir={tmp_path / 'run'}")


def test_a_damaged_checkpoint_is_named(given_, tmp_path):
    common = (*given_, f"run_dir={tmp_path}")
    run(*common, "stop_after=1")
    path = tmp_path / training.CHECKPOINT
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged; remove it"):
        run(*common)
    run(*common, "stop_after=1", "resume=false")


def test_a_place_that_is_taken_is_refused_before_training(given_, tmp_path, monkeypatch):
    monkeypatch.setattr(task, "load_model", None)
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match=r"out=.*there exists; remove it or give another"):
        run(*given_, f"out={tmp_path / 'there'}", f"run_dir={tmp_path / 'run'}")


def test_a_tokenizer_without_an_end_is_refused(given_, tmp_path):
    model = write_checkpoint(tmp_path / "lm")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("eos_token")
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="expected an end-of-sequence token in the tokenizer"):
        run(*given_, f"model.path={model}", f"run_dir={tmp_path / 'run'}")


def test_a_rate_that_breaks_the_weights_is_named(given_, tmp_path):
    with pytest.raises(
        ValueError, match=r"a finite gradient, got .* at step .*; lower learning_rate="
    ):
        run(*given_, "learning_rate=1e30", f"run_dir={tmp_path / 'run'}")


def test_the_default_is_the_model_as_it_comes():
    config = composed()
    assert (config.model.path, config.model.adapter) == (smollm2.NAME, "none")
