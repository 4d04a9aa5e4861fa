"""The language model with a KV cache against full recomputation, and against an equal toy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smc
from gcd import Vocabulary, lift, regex
from smc._models.self_check import shares_prompts
from smc._models.sharing_rows import SharedPrompts, SharingRows
from smc.testing import ToyLM
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, tiny_model

transformers = pytest.importorskip("transformers")

STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"
V = 29


SMALL = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.5,
}
GROUPED = {**SMALL, "intermediate_size": 24, "num_key_value_heads": 2}


def llama() -> Any:
    config = transformers.LlamaConfig(**GROUPED, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config)


def qwen2() -> Any:
    """A model with a window in its second layer only."""
    config = transformers.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
    )
    return transformers.Qwen2ForCausalLM(config)


def gemma2() -> Any:
    """A model that alternates windows and full attention."""
    config = transformers.Gemma2Config(**GROUPED, head_dim=4, sliding_window=4)
    return transformers.Gemma2ForCausalLM(config)


def gpt_neox() -> Any:
    config = transformers.GPTNeoXConfig(**SMALL, intermediate_size=24)
    return transformers.GPTNeoXForCausalLM(config)


def opt() -> Any:
    """A model whose position table begins with two unused entries."""
    config = transformers.OPTConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=24,
        word_embed_proj_dim=16,
        max_position_embeddings=64,
        init_std=0.5,
    )
    return transformers.OPTForCausalLM(config)


def bloom() -> Any:
    """A model with relative positions, derived from the attention mask."""
    config = transformers.BloomConfig(
        vocab_size=V, hidden_size=16, n_layer=2, n_head=4, initializer_range=0.5
    )
    return transformers.BloomForCausalLM(config)


def mpt() -> Any:
    config = transformers.MptConfig(
        vocab_size=V, d_model=16, n_layers=2, n_heads=4, max_seq_len=32, initializer_range=0.5
    )
    return transformers.MptForCausalLM(config)


def mamba() -> Any:
    config = transformers.MambaConfig(
        vocab_size=V, hidden_size=16, num_hidden_layers=2, state_size=4
    )
    return transformers.MambaForCausalLM(config)


def openai_gpt() -> Any:
    config = transformers.OpenAIGPTConfig(
        vocab_size=V, n_embd=16, n_layer=2, n_head=4, n_positions=64
    )
    return transformers.OpenAIGPTLMHeadModel(config)


def lfm2() -> Any:
    """A hybrid: convolution, then attention."""
    config = transformers.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"])
    return transformers.Lfm2ForCausalLM(config)


def jamba() -> Any:
    """A hybrid: state space, then attention."""
    config = transformers.JambaConfig(
        **GROUPED,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
        use_mamba_kernels=False,
    )
    return transformers.JambaForCausalLM(config)


def roberta() -> Any:
    """A model that counts positions from the number of its padding token."""
    config = transformers.RobertaConfig(
        **SMALL, intermediate_size=24, is_decoder=True, pad_token_id=3, max_position_embeddings=64
    )
    return transformers.RobertaForCausalLM(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.5
    )
    return transformers.GPT2LMHeadModel(config)


def mistral() -> Any:
    """A model that attends to the last five tokens: windows over columns must count tokens."""
    config = transformers.MistralConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        sliding_window=5,
        initializer_range=0.5,
    )
    return transformers.MistralForCausalLM(config)


ARCHITECTURES = [llama, gpt2, mistral, qwen2, gemma2, gpt_neox, opt, bloom, mpt]
NO_KV_CACHE = [mamba, openai_gpt, lfm2, jamba]


@pytest.fixture(params=ARCHITECTURES, ids=lambda build: build.__name__)
def lm(request: pytest.FixtureRequest) -> smc.TransformersLM:
    torch.manual_seed(0)
    model = request.param()
    return smc.TransformersLM(model, None, Vocabulary.from_bytes([b"x"] * V, [0]))


def naive(lm: smc.TransformersLM, tokens: list[int]) -> torch.Tensor:
    """Log p(next) after each token, without cache, padding or batch."""
    with torch.inference_mode():
        return lm.model(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-4)


PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6]]


def test_prompts_of_different_lengths(lm: smc.TransformersLM) -> None:
    _, log_p = lm.prefill(PROMPTS)
    for prompt, row in zip(PROMPTS, log_p, strict=True):
        close(row, naive(lm, prompt)[-1])


def test_a_life_of_rows(lm: smc.TransformersLM) -> None:
    """Apply runs of equal and different lengths, copies, drops and truncations, in any order."""
    generator = torch.Generator().manual_seed(1)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    rows, _ = lm.prefill(PROMPTS)
    prompts, answers = [list(p) for p in PROMPTS], [[] for _ in PROMPTS]
    for turn in range(24):
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


@pytest.mark.parametrize("build", NO_KV_CACHE)
def test_a_model_without_an_ordinary_kv_cache_is_refused_at_the_prompt(build: Any) -> None:
    model = build()
    with pytest.raises(ValueError, match=f"a model whose KV cache .*{type(model).__name__}"):
        smc.TransformersLM(model, None).prefill(PROMPTS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_with_its_own_positions_is_refused(dtype: torch.dtype) -> None:
    lm = smc.TransformersLM(roberta().to(dtype), None, Vocabulary.from_bytes([b"x"] * V, [0]))
    for use in (lambda: lm.prefill(PROMPTS), lm.static_forward):
        with pytest.raises(
            ValueError, match="RobertaForCausalLM, which doesn't count positions from 0"
        ):
            use()


class Mirror(ToyLM):
    """The toy protocol with full recomputation by a `transformers` model."""

    def __init__(self, lm: smc.TransformersLM) -> None:
        super().__init__(lm.vocabulary)
        self._lm = lm

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        if tokens not in self._known:
            self._known[tokens] = naive(self._lm, list(tokens))[-1]
        return self._known[tokens]


@pytest.mark.parametrize("proposal", [smc.LCD(), smc.GCD()])
def test_sampling_through_the_cache_is_sampling_from_the_model(proposal: smc.Proposal) -> None:
    lm = smc.TransformersLM(tiny_model().double(), None, VOCABULARY)
    prompts = [[1], [0, 1, 2, 2], [2, 1]]
    automata = [CONSTRAINTS["a_star_b"](), CONSTRAINTS["few_words"](), CONSTRAINTS["a_star_b"]()]

    def sample(model: smc.LanguageModel) -> list[smc.Posterior]:
        return smc.sample(
            model, prompts, automata, max_tokens=[9, 4, 6], particles=8, proposal=proposal, seed=5
        )

    for found, expected in zip(sample(lm), sample(Mirror(lm)), strict=True):
        assert found.answers == expected.answers
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-9)
        assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-9)
        assert [s.ids for s in found.particles] == [s.ids for s in expected.particles]


def test_context_and_dtype_come_from_the_model() -> None:
    assert smc.TransformersLM(gpt2(), None).context == 64
    assert smc.TransformersLM(mpt(), None).context == 32
    assert smc.TransformersLM(bloom(), None).context is None
    for dtype, at_least in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        _, log_p = smc.TransformersLM(llama().to(dtype), None).prefill(PROMPTS)
        assert log_p.dtype == at_least
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(4, dtype=torch.float64))


def test_logits_that_are_not_numbers_are_an_error() -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    lm = smc.TransformersLM(model, None, VOCABULARY)
    with pytest.raises(FloatingPointError, match="NaN"):
        smc.sample(
            lm, [[1]], CONSTRAINTS["forced"](), max_tokens=4, particles=2, proposal=smc.GCD()
        )


def test_a_real_checkpoint() -> None:
    lm = smc.TransformersLM(
        transformers.AutoModelForCausalLM.from_pretrained(STORIES),
        transformers.AutoTokenizer.from_pretrained(STORIES),
    )
    assert lm.vocabulary.size == 512
    assert lm.vocabulary.eos_ids == (1, 2)
    assert lm.encode("Once upon a time")[0] == 1
    (found,) = smc.sample(
        lm, ["Once upon a time"], lift(regex(r" The [a-z]{2,8} (was|is)\."), lm.vocabulary),
        max_tokens=12, particles=8, proposal=smc.GCD(), seed=1,
    )  # fmt: skip
    assert found.complete
    assert all(text.startswith(" The ") for text in found.texts)


def test_opened_prompts_are_read_once_and_say_the_same(lm: smc.TransformersLM) -> None:
    prompts = [[5, 7, 9], [5], [11, 12, 13, 14], [5]]
    lm.prefill([[1]])  # the first call runs the self-check
    read: list[tuple[int, ...]] = []
    handle = lm.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
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


def test_prompts_are_shared_where_attention_is_plain(
    lm: smc.TransformersLM, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    assert shares_prompts(lm.model) == (name in SHARING)
    rows, _ = lm.prefill([[1, 2, 3]])
    assert isinstance(rows, SharingRows) == (name in SHARING)


@pytest.mark.parametrize("seed", range(4))
def test_a_shared_prompt_is_as_good_as_copies(seed: int) -> None:
    """Reorder, extend and truncate rows with shared or copied prompts."""
    lm = smc.TransformersLM(llama().float(), None, Vocabulary.from_bytes([b"x"] * V, [0]))
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
    lm = smc.TransformersLM(llama(), None, Vocabulary.from_bytes([b"x"] * V, [0]))
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
    lm = smc.TransformersLM(llama(), None, Vocabulary.from_bytes([b"x"] * V, [0]))
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
    model = llama()

    def numbers(_: object, args: object, options: dict[str, Any]) -> tuple[object, dict[str, Any]]:
        mask = options["attention_mask"]
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, -torch.inf)
        return args, {**options, "attention_mask": mask}

    assert shares_prompts(model)
    lm = smc.TransformersLM(model, None, Vocabulary.from_bytes([b"x"] * V, [0]))
    rows, _ = lm.prefill(PROMPTS)
    model.model.layers[0].self_attn.register_forward_pre_hook(numbers, with_kwargs=True)
    assert not shares_prompts(model)
    with pytest.raises(NotImplementedError, match="a numeric mask"):
        rows.extend(torch.full((4, 1), 5), torch.ones(4, dtype=torch.int64))


def test_keys_of_another_precision_are_kept_in_that_of_the_prompts() -> None:
    lm = smc.TransformersLM(llama().float(), None, Vocabulary.from_bytes([b"x"] * V, [0]))
    rows, _ = lm.prefill(PROMPTS)
    with torch.autocast("cpu", torch.bfloat16):
        found = rows.extend(torch.full((4, 1), 5), torch.ones(4, dtype=torch.int64))
    for prompt, row in zip(PROMPTS, found, strict=True):
        torch.testing.assert_close(row[0], naive(lm, [*prompt, 5])[-1].float(), atol=0.2, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_does_not_keep_a_deep_model_from_sharing(dtype: torch.dtype) -> None:
    """In bfloat16 single log-probabilities differ by more than a quarter of a nat."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=24, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, initializer_range=0.2,
    )  # fmt: skip
    assert shares_prompts(transformers.LlamaForCausalLM(config).to(dtype).eval())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", [llama, gpt2, gpt_neox, opt, mistral, qwen2, gemma2, bloom, mpt])
def test_half_precision_shares_as_double_precision_does(build: Any, dtype: torch.dtype) -> None:
    """Means are compared, up to a quarter of a nat: unsuitable models are still rejected."""
    assert shares_prompts(build().to(dtype).eval()) == (build.__name__ in SHARING)
