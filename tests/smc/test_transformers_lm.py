"""Language models of `transformers` against full recomputation, and HMMs against their filter."""

from __future__ import annotations

import ast
import copy
import inspect
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import gcd
import smc
from hmm import HMM, filter_all, log_likelihood
from smc import HMMLanguageModel
from smc._models import transformers_internals as internals
from smc._models.hmm_lm import PROMPT
from smc._models.self_check import shares_prompts
from smc._models.sharing_rows import SharedPrompts, SharingRows
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, tiny_model

STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"
V = 29


SMALL: dict[str, Any] = {
    "vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.5,
}  # fmt: skip
WIDE = {**SMALL, "intermediate_size": 24}
GROUPED = {**WIDE, "num_key_value_heads": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, "max_position_embeddings": 64},
    "gpt2": {**SMALL, "n_positions": 64},
    # Windows over columns must count tokens.
    "mistral": {**GROUPED, "max_position_embeddings": 64, "sliding_window": 5},
    # A window in the second layer only, and alternating windows and full attention.
    "qwen2": {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "gemma2": {**GROUPED, "head_dim": 4, "sliding_window": 4},
    "gpt_neox": WIDE,
    # A position table that begins with two unused entries.
    "opt": {
        **SMALL, "ffn_dim": 24, "word_embed_proj_dim": 16, "max_position_embeddings": 64,
        "init_std": 0.5,
    },
    # Relative positions, derived from the attention mask.
    "bloom": SMALL,
    "mpt": {**SMALL, "max_seq_len": 32},
}  # fmt: skip
# State spaces, no cache, and hybrids of attention with convolutions or state spaces.
NO_KV_CACHE: dict[str, dict[str, Any]] = {
    "mamba": {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    "openai-gpt": {**SMALL, "n_positions": 64},
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention"]},
    "jamba": {
        **GROUPED, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "mamba_d_state": 4, "use_mamba_kernels": False,
    },
}  # fmt: skip


def build(name: str) -> Any:
    """Return a random model of this type."""
    config = transformers.AutoConfig.for_model(name, **{**ARCHITECTURES, **NO_KV_CACHE}[name])
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def lm_of(model: Any) -> smc.TransformersLM:
    return smc.TransformersLM(model, None, gcd.Vocabulary.from_bytes([b"x"] * V, [0]))


@pytest.fixture(params=ARCHITECTURES)
def lm(request: pytest.FixtureRequest) -> smc.TransformersLM:
    torch.manual_seed(0)
    return lm_of(build(request.param))


def naive(lm: smc.TransformersLM, tokens: list[int]) -> torch.Tensor:
    """Log p(next) after each token, without cache, padding or batch."""
    with torch.inference_mode():
        return lm.model(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-4)


PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6]]


def test_a_life_of_rows(lm: smc.TransformersLM) -> None:
    """Apply runs of equal and different lengths, copies, drops and truncations, in any order."""
    generator = torch.Generator().manual_seed(1)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    rows, log_p = lm.prefill(PROMPTS)
    for prompt, row in zip(PROMPTS, log_p, strict=True):
        close(row, naive(lm, prompt)[-1])
    prompts, answers = [list(p) for p in PROMPTS], [[] for _ in PROMPTS]
    for turn in range(20):
        R = len(answers)
        kind = turn % 4
        if kind == 0:
            ancestors = integers(0, R, int(integers(1, 7, 1)))
            rows.reorder(ancestors)
            prompts = [prompts[a] for a in ancestors.tolist()]
            answers = [list(answers[a]) for a in ancestors.tolist()]
        elif kind == 2 and max(map(len, answers)) > 6:
            keep = torch.stack([integers(0, len(a) + 1, 1)[0] for a in answers])
            rows.truncate(keep)
            answers = [a[:k] for a, k in zip(answers, keep.tolist(), strict=True)]
        else:
            T = 1 if kind == 1 else 4
            runs, lengths = integers(0, V, R, T), integers(1, T + 1, R)
            log_p = rows.extend(runs, lengths)
            assert log_p.shape == (R, T, V)
            for r, length in enumerate(lengths.tolist()):
                answers[r] += runs[r, :length].tolist()
                close(log_p[r, :length], naive(lm, prompts[r] + answers[r])[-length:])
    assert max(map(len, answers)) > 4


@pytest.mark.parametrize("name", NO_KV_CACHE)
def test_a_model_without_an_ordinary_kv_cache_is_refused_at_the_prompt(name: str) -> None:
    model = build(name)
    with pytest.raises(ValueError, match=f"a model whose KV cache .*{type(model).__name__}"):
        smc.TransformersLM(model, None).prefill(PROMPTS)


def test_context_and_dtype_come_from_the_model() -> None:
    assert smc.TransformersLM(build("gpt2"), None).context == 64
    assert smc.TransformersLM(build("mpt"), None).context == 32
    assert smc.TransformersLM(build("bloom"), None).context is None
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        _, log_p = smc.TransformersLM(build("llama").to(dtype), None).prefill(PROMPTS)
        assert log_p.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("lm", ["llama", "mistral", "opt", "bloom"], indirect=True)
def test_opened_prompts_are_read_once_and_say_the_same(lm: smc.TransformersLM) -> None:
    prompts = [[5, 7, 9], [5], [11, 12, 13, 14], [5]]
    lm.prefill([[1]])  # the first call runs the self-check
    read: list[tuple[int, ...]] = []
    handle = lm.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        opened = [lm.open(prompt) for prompt in prompts]
        assert [list(each) for each in opened] == prompts
        assert read == [(1, 3), (1, 1), (1, 4), (1, 1)]
        again, kept = lm.prefill([*opened[::-1], [6, 8]])
        assert read[4:] == [(1, 2)]
    finally:
        handle.remove()
    fresh, expected = lm.prefill([*prompts[::-1], [6, 8]])
    torch.testing.assert_close(kept, expected)
    runs, lengths = torch.tensor([[3, 4]] * 5), torch.tensor([2, 1, 2, 1, 2])
    for rows in (again, fresh):
        rows.reorder(torch.tensor([4, 2, 2, 0, 1]))
    one, two = again.extend(runs, lengths), fresh.extend(runs, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(one[row, :length], two[row, :length])
    values = again.extend(runs, lengths)  # the opened prompts themselves haven't changed
    again, kept = lm.prefill([*opened[::-1], [6, 8]])
    torch.testing.assert_close(kept, expected)
    again.reorder(torch.tensor([4, 2, 2, 0, 1]))
    again.extend(runs, lengths)
    torch.testing.assert_close(again.extend(runs, lengths)[0], values[0])


def test_all_calls_take_opened_prompts() -> None:
    """Results are the same as for the prompt's token ids; other models refuse it."""
    lm = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    constraint = CONSTRAINTS["few_words"]()
    plain, opened = [2, 1], lm.open([2, 1])
    options = {"max_tokens": 3, "particles": 4, "proposal": smc.GCD()}
    for call in (
        lambda prompt: sample_with(lm, [prompt], constraint, **options)[0].log_evidence,
        lambda prompt: smc.distribution(lm, [prompt], constraint, max_tokens=3)[0].log_evidence,
        lambda prompt: smc.search(lm, prompt, constraint, max_tokens=3).answers[0].log_p,
    ):
        assert call(plain) == pytest.approx(call(opened), abs=1e-4)
    other = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    for call in (lambda: sample_with(other, [opened], constraint, **options),
                 lambda: other.prefill([opened])):  # fmt: skip
        with pytest.raises(ValueError, match="prompt opened by this TransformersLM"):
            call()
    assert type(copy.deepcopy(opened)) is tuple  # without the model
    for wrong, message in (([], "at least one token"), ([999], "token ids from 0")):
        with pytest.raises(ValueError, match=message):
            lm.open(wrong)
    with pytest.raises(smc.PromptTooLongError):
        lm.open([1] * (lm.context + 1))


SHARING = {"llama", "gpt2", "gpt_neox", "opt"}  # the others have windows, biases or softcaps


@pytest.mark.parametrize("seed", range(4))
def test_a_shared_prompt_is_as_good_as_copies(seed: int) -> None:
    """Reorder, extend and truncate rows with shared or copied prompts."""
    lm = lm_of(build("llama"))
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, V, size=n).tolist() for n in rng.integers(1, 9, size=4)]
    copied, _ = lm._read(prompts)
    shared = SharingRows(
        lm.model,
        SharedPrompts(copied.lengths, [(k.clone(), v.clone()) for k, v in copied.prompts().layers]),
    )
    held = len(prompts)
    # Columns are dropped after the long runs. In the end, some prompts have no rows.
    for count, most in ((9, 4), (9, 40), (9, 4), (9, 4), (5, 4), (3, 40), (6, 4), (1, 4), (4, 4)):
        ancestors = torch.from_numpy(np.sort(rng.integers(0, held, size=count)))
        if rng.random() < 0.3:
            ancestors = ancestors[torch.randperm(count)]
        held = count
        lengths = torch.from_numpy(rng.integers(1, most, size=count))
        runs = torch.from_numpy(rng.integers(0, V, size=(count, int(lengths.max()))))
        cut = torch.from_numpy(rng.integers(0, 6, size=count)) if rng.random() < 0.7 else None
        results = []
        for rows in (copied, shared):
            rows.reorder(ancestors)
            if cut is not None:
                rows.truncate(cut)
            results.append(rows.extend(runs, lengths))
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(
                results[0][row, :length], results[1][row, :length], atol=1e-4, rtol=0
            )
    assert len(shared._prompts.lengths) < len(prompts)
    assert shared.lengths.max() < copied.lengths.max()  # the prompts are stored once


def test_runs_of_unequal_lengths_are_read_without_padding() -> None:
    """The model computes exactly the tokens of the runs, regardless of the longest one."""
    lm = lm_of(build("llama"))
    rows, _ = lm.prefill(PROMPTS)
    computed: list[int] = []
    lm.model.lm_head.register_forward_hook(lambda _, given, out: computed.append(out.shape[-2]))
    lengths = torch.tensor([7, 1, 0, 2])
    rows.extend(torch.full((4, 7), 5), lengths)
    rows.truncate(torch.tensor([2, 0, 0, 1]))
    rows.extend(torch.full((4, 3), 5), torch.tensor([0, 3, 0, 0]))
    assert computed == [10, 3]
    none = rows.extend(torch.full((4, 3), 5), torch.zeros(4, dtype=torch.int64))
    assert none.shape == (4, 3, V)


def test_a_pass_that_failed_can_be_made_again() -> None:
    lm = lm_of(build("llama"))
    run, ones = torch.full((4, 1), 5), torch.ones(4, dtype=torch.int64)
    rows, _ = lm.prefill(PROMPTS)
    rows.extend(run, ones)

    def fails(*_: object) -> None:
        raise OSError("in the second layer")

    hook = lm.model.model.layers[1].register_forward_pre_hook(fails)
    with pytest.raises(OSError, match="second layer"):
        rows.extend(run, ones)
    hook.remove()
    for prompt, row in zip(PROMPTS, rows.extend(run, ones), strict=True):
        close(row[0], naive(lm, [*prompt, 5, 5])[-1])


def test_a_model_that_makes_numbers_of_the_mask_pads() -> None:
    """Numbers may encode more than valid columns, and packed tokens have no such mask."""
    model = build("llama")

    def numbers(_: object, args: object, options: dict[str, Any]) -> tuple[object, dict[str, Any]]:
        mask = options["attention_mask"]
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, -torch.inf)
        return args, {**options, "attention_mask": mask}

    assert shares_prompts(model)
    lm = lm_of(model)
    rows, _ = lm.prefill(PROMPTS)
    model.model.layers[0].self_attn.register_forward_pre_hook(numbers, with_kwargs=True)
    assert not shares_prompts(model)
    with pytest.raises(NotImplementedError, match="a numeric mask"):
        rows.extend(torch.full((4, 1), 5), torch.ones(4, dtype=torch.int64))


def test_keys_of_another_precision_are_kept_in_that_of_the_prompts() -> None:
    lm = lm_of(build("llama"))
    rows, _ = lm.prefill(PROMPTS)
    with torch.autocast("cpu", torch.bfloat16):
        found = rows.extend(torch.full((4, 1), 5), torch.ones(4, dtype=torch.int64))
    for prompt, row in zip(PROMPTS, found, strict=True):
        torch.testing.assert_close(row[0], naive(lm, [*prompt, 5])[-1].float(), atol=0.2, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_does_not_keep_a_deep_model_from_sharing(dtype: torch.dtype) -> None:
    """In bfloat16 single log-probabilities differ by more than a quarter of a nat."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=24, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, initializer_range=0.2,
    )  # fmt: skip
    assert shares_prompts(transformers.LlamaForCausalLM(config).to(dtype).eval())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in ARCHITECTURES),
     *((name, dtype) for name in ("llama", "mistral") for dtype in (torch.float16, torch.float32))],
)  # fmt: skip
def test_prompts_are_shared_where_attention_is_plain(name: str, dtype: torch.dtype) -> None:
    """Means are compared, up to a quarter of a nat: unsuitable models are still rejected."""
    rows, _ = lm_of(build(name).to(dtype)).prefill([[1, 2, 3]])
    assert isinstance(rows, SharingRows) == (name in SHARING)


# -- HMMs as language models -----------------------------------------------------------------------


TOKENS_OF_HMM = gcd.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"ba", b"."], eos_ids=[0])


def toy(num_states: int = 4, **options) -> HMM:
    generator = torch.Generator().manual_seed(0)
    return HMM.random(num_states, TOKENS_OF_HMM.size, generator=generator, **options)


def test_the_next_token_is_as_the_filter_has_it():
    model = toy()
    lm = HMMLanguageModel(model, TOKENS_OF_HMM)
    assert lm.encode("anything") == list(PROMPT)
    assert lm.encode([2, 4]) == [2, 4]
    assert isinstance(lm, smc.LanguageModel)
    rows, first = lm.prefill([PROMPT, [3, 1]])
    assert torch.equal(first[0], first[1]), "prompts are ignored"
    tokens = [[1, 3, 2, 5], [4, 4, 1, 1]]
    runs, lengths = torch.tensor(tokens), torch.tensor([4, 4])
    found = torch.cat([first.unsqueeze(1), rows.extend(runs, lengths)], dim=1)
    assert found.dtype == torch.float64
    predicted = filter_all(model.normalized(torch.float64), runs, lengths).predicted
    expected = (predicted @ model.normalized(torch.float64).emission.T).log()
    torch.testing.assert_close(found[:, :4], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.exp().sum(dim=2), torch.ones(2, 5).double())
    chosen = found[:, :4].gather(2, runs.unsqueeze(2)).sum(dim=(1, 2))
    whole = log_likelihood(model.normalized(torch.float64), runs, lengths)
    torch.testing.assert_close(chosen, whole, rtol=1e-12, atol=1e-12)


def test_rows_are_extended_copied_and_cut_back():
    lm = HMMLanguageModel(toy(), TOKENS_OF_HMM)
    rows, _ = lm.prefill([PROMPT])
    rows.reorder(torch.tensor([0, 0, 0]))
    ragged = rows.extend(torch.tensor([[1, 2, 3], [4, 9, 9], [5, 1, 9]]), torch.tensor([3, 1, 2]))
    assert bool(ragged[1, 1:].isnan().all())
    assert bool(ragged[2, 2:].isnan().all())
    rows.reorder(torch.tensor([2, 0, 2, 1]))
    rows.truncate(torch.tensor([2, 1, 0, 1]))
    after = rows.extend(torch.tensor([[2], [2], [2], [2]]), torch.ones(4, dtype=torch.int64))
    for row, prefix in enumerate([[5, 1, 2], [1, 2], [2], [4, 2]]):
        fresh, _ = lm.prefill([PROMPT])
        expected = fresh.extend(torch.tensor([prefix]), torch.tensor([len(prefix)]))
        torch.testing.assert_close(after[row, 0], expected[0, -1])


def test_nothing_follows_an_impossible_row_and_another_vocabulary_is_refused():
    model = toy()
    emission = model.emission.clone()
    emission[2] = 0
    lm = HMMLanguageModel(HMM(model.initial, model.transition, emission), TOKENS_OF_HMM)
    rows, first = lm.prefill([PROMPT])
    assert float(first[0, 2]) == -math.inf
    rows.reorder(torch.tensor([0, 0]))
    after = rows.extend(torch.tensor([[2, 1], [1, 1]]), torch.tensor([2, 2]))
    assert bool(after[0].isneginf().all())
    assert bool(after[1].logsumexp(dim=1).exp().allclose(torch.ones((), dtype=torch.float64)))
    with pytest.raises(ValueError, match="over 6 tokens, as in the vocabulary, got one over 7"):
        HMMLanguageModel(HMM.random(2, 7), TOKENS_OF_HMM)


# -- non-public names of `transformers` ------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]


def minor(version: str) -> tuple[int, int]:
    first, second = version.split(".")[:2]
    return int(first), int(second)


def test_the_installed_version_is_between_those_that_were_tested() -> None:
    oldest, newest = map(minor, internals.TESTED)
    assert oldest <= minor(transformers.__version__) <= newest


def test_the_oldest_version_is_the_bound_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {
        bound
        for extra in project["optional-dependencies"].values()
        for bound in re.findall(r"'transformers>=([\d.]+),<6'", str(extra))
    }
    assert bounds == {internals.TESTED[0]}


def test_a_missing_name_names_the_versions_that_work() -> None:
    oldest, newest = internals.TESTED
    with pytest.raises(
        ImportError, match=rf"transformers\.cache_utils\.Gone, .*{oldest} to {newest}"
    ):
        internals.private("cache_utils", "Gone")
    with pytest.raises(ImportError, match=r"expected transformers\.gone\.Gone"):
        internals.private("gone", "Gone")


def test_every_private_name_is_there() -> None:
    calls = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(internals)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "private"
    ]
    assert calls
    for call in calls:
        assert eval(call, vars(internals)) is not None
