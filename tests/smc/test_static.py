"""The static step against the loop that waits, and against the exact walk over all its choices."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch

import smc
from gcd.languages.text.regex import regex
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.lifting import lift
from hmm.model import HMM
from smc.draw import CounterDraw
from smc.prefixes import Reader
from smc.proposals import Batch
from smc.reading import alone
from smc.resampling import SCHEMES, scheme
from smc.sampler import Sampler
from smc.static import StaticSampler, StaticTransformer
from smc.static.moves import moves
from smc.static.proposal import in_static_shapes
from smc.testing import ToyLM, walk
from tests.smc.test_walk import PROMPT, TOY, truth
from tests.smc.toys import CONSTRAINTS, VOCABULARY


class ToyForward:
    """A toy language model in static shapes."""

    def __init__(self, lm: ToyLM) -> None:
        self.lm = lm

    def start(self, prompts, num_particles, budget):
        self.rows, log_p = self.lm.prefill(prompts)
        each = torch.arange(len(prompts)).repeat_interleave(num_particles)
        self.rows.reorder(each)
        return log_p[each]

    def step(self, tokens, source, step):
        self.rows.reorder(source)
        return self.rows.extend(tokens.unsqueeze(1), torch.ones_like(tokens))[:, 0]

    def rewind(self):
        raise NotImplementedError("only captured steps are taken twice")


def pgcd(twist: str = "conditional", **options) -> smc.PGCD:
    generator = torch.Generator().manual_seed(5)
    hmm = HMM.random(3, VOCABULARY.size, generator=generator, dtype=torch.float64)
    return smc.PGCD(hmm, lookahead=twist, **options)


PROPOSALS = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "pgcd": lambda: pgcd(exact_top_k=2),
    "in_time": lambda: pgcd("in_time", exact_top_k=0, defence=0.1),
    "no_potential": lambda: pgcd(exact_top_k=1, potential=False),
}


def both(
    lm,
    forward,
    prompts,
    automata,
    budgets,
    proposal,
    *,
    particles,
    seed=0,
    draw=None,
    temperature=1.0,
    ids=None,
    whole_vocabulary=None,
    **options,
):
    """The outcomes of both loops."""
    options = {"resampling": "systematic", "ess_threshold": 0.5, "strata": "state", **options}
    batch = Batch(AutomatonBatch(automata), torch.tensor(budgets))
    ids = torch.arange(len(prompts)) if ids is None else torch.tensor(ids)
    shared = {"examples": ids, "num_particles": particles, "draw": draw or CounterDraw(seed)}
    static = StaticSampler(
        forward,
        proposal,
        batch,
        temperature=temperature,
        whole_vocabulary=whole_vocabulary,
        **shared,
        **options,
    )
    found = static.run(prompts)
    reader = Reader(lm, proposal, batch, temperature=temperature, top_p=1.0, forced_runs=False)
    named = {**options, "scheme": scheme(options.pop("resampling"))}
    named.pop("resampling", None)
    steps = Sampler(reader, **shared, **named).steps(prompts)
    return found, alone(steps, lm.vocabulary.size)


def assert_same(found, expected, tolerance=1e-9):
    assert torch.equal(found.tokens[:, : expected.tokens.shape[1]], expected.tokens)
    assert torch.equal(found.length, expected.length)
    assert torch.equal(found.finished, expected.finished)
    assert torch.allclose(found.log_weight, expected.log_weight, rtol=0, atol=tolerance)
    assert torch.allclose(found.log_evidence, expected.log_evidence, rtol=0, atol=tolerance)


@pytest.mark.parametrize("strata", ["none", "state"])
@pytest.mark.parametrize("name", PROPOSALS)
def test_the_same_tokens_as_the_loop_that_waits(name: str, strata: str) -> None:
    automata = [CONSTRAINTS[each]() for each in ("few_words", "a_star_b", "forced", "a_star_b")]
    prompts, budgets = [[0], [1, 2], [2, 2, 1], [0, 0]], [4, 6, 3, 8]
    resampled = 0
    for seed in range(2):
        schemes = (*SCHEMES, "multinomial")
        for threshold, resampling in zip((0.5, 0.9, 1.0, 0.7, 1.0), schemes, strict=True):
            found, expected = both(
                TOY, ToyForward(TOY), prompts, automata, budgets, PROPOSALS[name](), particles=8,
                seed=seed, strata=strata, ess_threshold=threshold, resampling=resampling,
                temperature=(1.0, 0.6)[seed % 2], ids=[3, 9, 0, 4],
            )  # fmt: skip
            assert_same(found, expected)
            resampled += int(expected.history.resampled.sum())
    assert resampled > 5


@pytest.mark.parametrize("resampling", ["systematic", "residual"])
@pytest.mark.parametrize("strata", ["none", "state"])
@pytest.mark.parametrize("name", ["gcd", "pgcd"])
def test_the_walk_over_all_choices_sums_to_the_target(
    name: str, strata: str, resampling: str
) -> None:
    automaton, budget = CONSTRAINTS["a_star_b"](), 3
    mass: dict[bytes, float] = defaultdict(float)
    total = 0.0

    def run(draw, ids):
        batch = Batch(AutomatonBatch([automaton] * len(ids)), torch.full((len(ids),), budget))
        sampler = StaticSampler(
            ToyForward(TOY), PROPOSALS[name](), batch, examples=torch.tensor(ids), num_particles=2,
            resampling=resampling, ess_threshold=1.0, strata=strata, draw=draw,
        )  # fmt: skip
        outcome = sampler.run([PROMPT] * len(ids))
        parts = zip(outcome.tokens.view(len(ids), 2, -1).tolist(),
                    outcome.log_weight.view(len(ids), 2).exp().tolist(), strict=True)  # fmt: skip
        return list(parts)

    for probability, (sequences, weights) in walk(run):
        total += probability
        for tokens, weight in zip(sequences, weights, strict=True):
            if weight > 0:
                ids = [token for token in tokens if token >= 0]
                mass[VOCABULARY.decode(ids)] += probability * weight / 2
    expected = truth(automaton, budget)
    assert total == pytest.approx(1, abs=1e-10)
    assert dict(mass) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", PROPOSALS)
def test_what_is_not_a_number_is_refused(name: str) -> None:
    class Broken(ToyForward):
        def step(self, tokens, source, step):
            return super().step(tokens, source, step) * torch.nan

    batch = Batch(AutomatonBatch([CONSTRAINTS["a_star_b"]()]), torch.tensor([4]))
    found = StaticSampler(
        Broken(TOY), PROPOSALS[name](), batch, examples=torch.tensor([0]), draw=CounterDraw(0),
        num_particles=2,
    )  # fmt: skip
    with pytest.raises(FloatingPointError, match="not numbers"):
        found.run([[0]])


@pytest.mark.parametrize("name", ["lm", "gcd", "pgcd"])
def test_what_the_model_says_after_the_end_does_not_matter(name: str) -> None:
    class Silent(ToyLM):
        """After an end it says nothing that is a number."""

        def log_p(self, tokens):
            over = tokens[-1] in VOCABULARY.eos_ids and len(tokens) > 1
            return super().log_p(tokens) * (torch.nan if over else 1)

    automata = [CONSTRAINTS[each]() for each in ("few_words", "a_star_b")]
    silent = ToyForward(Silent(VOCABULARY, seed=1, spread=1.5))
    found, expected = both(
        TOY, silent, [[0], [1]], automata, [4, 7], PROPOSALS[name](), particles=6
    )  # fmt: skip
    assert_same(found, expected)


def test_copies_take_rows_that_nobody_has() -> None:
    generator = torch.Generator().manual_seed(3)
    for N in (1, 2, 5, 16):
        row, cache = torch.randperm(N, generator=generator), torch.arange(N)
        row = torch.cat([row, N + torch.randperm(N, generator=generator)])
        cache = torch.arange(2 * N)
        for _ in range(20):
            owned = cache[row]
            ancestors = torch.randint(0, N, (2 * N,), generator=generator)
            ancestors[N:] += N
            moved = moves(ancestors, row, N)
            assert torch.equal(moved.row.sort().values, torch.arange(2 * N))
            # In place: no row is read that another row is written to.
            assert torch.equal(moved.source[moved.source], moved.source)
            stays = moved.source == torch.arange(2 * N)
            assert int(stays.sum()) == len(ancestors.unique())
            row, cache = moved.row, cache[moved.source]
            assert torch.equal(cache[row], owned[ancestors])


STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float64)
    return smc.TransformersLM(model, transformers.AutoTokenizer.from_pretrained(STORIES))


@pytest.mark.parametrize("name", ["lm", "lcd", "gcd"])
def test_a_real_model_gives_the_same_tokens(stories: smc.TransformersLM, name: str) -> None:
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), stories.vocabulary)
    found, expected = both(
        stories, StaticTransformer(stories), [stories.encode("A story. "), stories.encode("The ")],
        [automaton, automaton], [12, 9], PROPOSALS[name](), particles=6, ess_threshold=0.9,
    )  # fmt: skip
    assert_same(found, expected)


def test_a_row_that_is_over_stays_within_the_context(stories: smc.TransformersLM) -> None:
    """Learned positions end where the context does; the other row goes on for longer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=stories.vocabulary.size, n_positions=12, n_embd=8, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    lm = smc.TransformersLM(transformers.GPT2LMHeadModel(config).double().eval(), stories.tokenizer)
    automaton = lift(regex("[a-z ]{1,40}"), lm.vocabulary)
    found, expected = both(
        lm, StaticTransformer(lm), [list(range(5, 14)), [5, 6]], [automaton, automaton], [3, 10],
        smc.GCD(), particles=3,
    )  # fmt: skip
    assert_same(found, expected)


def test_refusals_name_what_was_wrong(stories: smc.TransformersLM) -> None:
    with pytest.raises(ValueError, match="not GreedyClose"):
        in_static_shapes(smc.GreedyClose())

    class Own(smc.PGCD):
        def guide(self, state, log_p):
            return super().guide(state, log_p)

    with pytest.raises(ValueError, match="not Own"):
        in_static_shapes(Own(pgcd().hmm))
    with pytest.raises(ValueError, match="exact_top_k is None"):
        in_static_shapes(pgcd(exact_top_k=None))
    batch = Batch(AutomatonBatch([CONSTRAINTS["forced"]()]), torch.tensor([3]))
    with pytest.raises(ValueError, match="not 'best'"):
        StaticSampler(
            ToyForward(TOY), smc.GCD(), batch, examples=torch.tensor([0]), num_particles=2,
            draw=CounterDraw(0), resampling="best",
        )  # fmt: skip
    with pytest.raises(ValueError, match="CUDA devices only, not on cpu"):
        StaticSampler(
            ToyForward(TOY), smc.GCD(), batch, examples=torch.tensor([0]), num_particles=2,
            draw=CounterDraw(0), graph=True,
        )  # fmt: skip
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, sliding_window=4,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    windowed = smc.TransformersLM(transformers.MistralForCausalLM(config), None)
    with pytest.raises(ValueError, match="MistralForCausalLM does not attend to all columns"):
        StaticTransformer(windowed)
