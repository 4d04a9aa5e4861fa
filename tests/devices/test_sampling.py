"""Both algorithms and both executions, with every proposal, give what they give on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smc
import smc._inference.captured
from gcd import AutomatonBatch, lift, regex
from hmm import HMM
from smc import Batch, HMMLanguageModel
from smc._inference.algorithms import SMC, Discrete
from smc._inference.captured import WARM_UP, AnswerTables, StaticReader, StaticRun, run_static
from smc._inference.execution import Job, Settings, steps_of
from smc._vocabulary.passes import TENSORS
from smc.testing import ToyLM
from tests.devices.device import DEVICE, NAME, move
from tests.smc.calls import sample_with
from tests.smc.cases import PROPOSALS, examples
from tests.smc.toys import CONSTRAINTS, VOCABULARY, stories, tiny_model

ALGORITHMS: dict[str, dict[str, Any]] = {
    "smc": {"ess_threshold": 0.9},
    "strata": {"strata": "state", "resampling": "multinomial", "ess_threshold": 0.9},
    "discrete": {"algorithm": "discrete"},
}


def toy(device: Any) -> ToyLM:
    return ToyLM(VOCABULARY, seed=1, spread=1.5, device=device)


def proposal(name: str, device: Any) -> smc.Proposal:
    made = PROPOSALS[name]()
    if isinstance(made, smc.PGCD):
        made.hmm = made.lookahead.hmm = made.hmm.to(device)
    return made


# Models of `transformers` norm and rotate in float32, whatever their type.
FLOAT32 = 1e-9 if NAME == "mock" else 2e-5


def assert_same(
    found: list[smc.Posterior], expected: list[smc.Posterior], tolerance: float = 1e-9
) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [s.ids for s in one.particles] == [s.ids for s in other.particles]
        for name in ("log_weight", "log_p"):
            values = [getattr(s, name) for s in other.particles]
            mine = [getattr(s, name) for s in one.particles]
            assert mine == pytest.approx(values, abs=tolerance)
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=tolerance)
        assert one.diagnostics.tokens == other.diagnostics.tokens


def test_a_model_with_a_layer_on_another_device() -> None:
    """Its rows of keys and values lie on both, and moved they are."""

    def moved(device: Any) -> Any:
        return lambda module, args, kwargs: move((args, kwargs), device)

    def sampled(model: Any, **options: Any) -> list[smc.Posterior]:
        lm = smc.TransformersLM(model, None, vocabulary=VOCABULARY)
        assert lm.device.type == "cpu"
        automata = [CONSTRAINTS["few_words"](), CONSTRAINTS["a_star_b"]()]
        return sample_with(
            lm, [[0, 1], [2]], automata, max_tokens=6, particles=8, proposal=smc.GCD(),
            ess_threshold=1.0, **{"algorithm": "smc", **options},
        )  # fmt: skip

    split = tiny_model(layers=2).double()
    split.model.layers[1].to(DEVICE)
    split.model.layers[1].register_forward_pre_hook(moved(DEVICE), with_kwargs=True)
    split.model.norm.register_forward_pre_hook(moved("cpu"), with_kwargs=True)
    assert_same(sampled(split), sampled(tiny_model(layers=2).double()), FLOAT32)
    with pytest.raises(ValueError, match="on one device, as static shapes require, got several"):
        sampled(split, execution="static")


# Every proposal, and all pairs of algorithms and executions.
TOGETHER = [
    ("exact", "smc", "static"),
    ("gcd", "strata", "static"),
    ("no_potential", "discrete", "static"),
    ("greedy_close", "smc", "eager"),
    ("in_time", "smc", "eager"),
    ("pgcd", "strata", "eager"),
    ("own", "discrete", "eager"),
    ("lcd", "discrete", "eager"),
    ("lm", "discrete", "static"),
]


@pytest.mark.parametrize(("name", "algorithm", "execution"), TOGETHER)
def test_the_same_answers_as_on_the_cpu(
    name: str, algorithm: str, execution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncaptured(*given: Any, graph: bool) -> Any:
        return run_static(*given, graph=False)

    # The toy's numbers come from the host; steps are captured in tests/smc/test_gpu.py.
    monkeypatch.setattr(smc._inference.captured, "run_static", uncaptured)
    found, expected = (
        sample_with(
            toy(device), **examples(), particles=5, seed=2, temperature=0.8,
            proposal=proposal(name, device), execution=execution,
            **{"algorithm": "smc", **ALGORITHMS[algorithm]},
        )
        for device in (DEVICE, "cpu")
    )  # fmt: skip
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [({"max_rows": 7}, "discrete"), ({"forced_runs": False}, "strata")],
)
def test_options_of_the_eager_way(options: dict[str, Any], algorithm: str) -> None:
    shown: dict[Any, list[Any]] = {DEVICE: [], "cpu": []}
    found, expected = (
        sample_with(
            toy(device), **examples(), particles=5, seed=3, proposal=smc.GCD(),
            observe=lambda _, device=device: shown[device].append, execution="eager",
            **options, **{"algorithm": "smc", **ALGORITHMS[algorithm]},
        )
        for device in shown
    )  # fmt: skip
    assert_same(found, expected)
    assert len(shown[DEVICE]) == len(shown["cpu"]) > 2


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [(name, [*ALGORITHMS][number % 3]) for number, name in enumerate(PROPOSALS)],
)
@pytest.mark.skipif(NAME != "mock", reason="on a GPU, tests/smc/test_gpu.py looks for waits")
def test_a_static_step_waits_for_nothing(name: str, algorithm: str) -> None:
    from tests.devices.pretending import counted_waits

    given = {key: value for key, value in ALGORITHMS[algorithm].items() if key != "algorithm"}
    automaton = CONSTRAINTS["a_star_b"]()
    batch = Batch(
        AutomatonBatch([automaton] * 2, device=DEVICE), torch.tensor([12, 9], device=DEVICE)
    )
    reader = StaticReader(
        toy(DEVICE).static_forward(), proposal(name, DEVICE), batch, TENSORS, num_particles=6,
        temperature=1.0, spare=WARM_UP,
    )  # fmt: skip
    reader.forward = _Quiet(6 * 2, VOCABULARY.size)
    kind = (Discrete if algorithm == "discrete" else SMC)(**given)
    settings = Settings.of(reader.proposal, 6, kind, 12, seed=3)
    examples = torch.arange(2, device=DEVICE)
    job = Job(toy(DEVICE), settings, [[0], [1]], batch, examples, None, None)
    steps = steps_of(job, reader, AnswerTables)
    run = StaticRun(steps, [[0], [1]], 12, graph=False)
    run.step()  # tables that are made once, at first use
    with counted_waits() as waits:
        for _ in range(2):  # a captured step does the same every time
            run.step()
    assert not waits
    run.outcome()


class _Quiet:
    """A model that says the same of every prefix, and waits for nothing."""

    def __init__(self, num_rows: int, size: int) -> None:
        self.log_p = torch.randn(size, generator=torch.Generator().manual_seed(0)).double()
        self.log_p = self.log_p.log_softmax(dim=0).expand(num_rows, size).contiguous().to(DEVICE)

    def start(self, *_: Any) -> torch.Tensor:
        return self.log_p

    def step(self, *_: Any) -> torch.Tensor:
        return self.log_p


@pytest.fixture(scope="module")
def both() -> dict[Any, smc.TransformersLM]:
    return {device: stories(device) for device in (DEVICE, "cpu")}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pgcd", {"algorithm": "smc"}),
        ("gcd", {"algorithm": "discrete"}),
        ("lcd", {"algorithm": "smc", "execution": "static"}),
    ],
)
def test_a_model_of_transformers(both: Any, name: str, options: dict[str, Any]) -> None:
    vocabulary = both["cpu"].vocabulary
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), vocabulary)
    prompts = ["A story. ", "The ", "A story. "]  # one of them is kept
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(8, vocabulary.size, generator=generator, dtype=torch.float64)
    ahead = {
        device: smc.PGCD(hmm.to(device), exact_top_k=8, lookahead="in_time") for device in both
    }
    found, expected = (
        sample_with(
            lm, prompts, automaton, max_tokens=[6, 5, 6], particles=3, seed=3,
            proposal=ahead[device] if name == "pgcd" else PROPOSALS[name](), **options,
        )
        for device, lm in both.items()
    )  # fmt: skip
    assert_same(found, expected, FLOAT32)


def test_generate_and_the_logits_processor(both: Any) -> None:
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), both["cpu"].vocabulary)
    decode = smc.generate(automaton, particles=4, seed=2, algorithm="smc")
    ways: tuple[dict[str, Any], ...] = (
        {"custom_generate": decode},
        {"logits_processor": [smc.BudgetLogitsProcessor(automaton, 6)], "do_sample": False},
    )
    answers = []
    for device, lm in both.items():
        inputs = lm.tokenizer(["A story. "], return_tensors="pt").to(device)
        written = [lm.model.generate(**inputs, max_new_tokens=6, **options) for options in ways]
        assert all(each.device.type == torch.device(device).type for each in written)
        answers.append([each.tolist() for each in written])
    assert answers[0] == answers[1]


def test_an_hmm_as_the_language_model() -> None:
    generator = torch.Generator().manual_seed(1)
    hmm = HMM.random(4, VOCABULARY.size, generator=generator, dtype=torch.float64)
    found, expected = (
        sample_with(
            HMMLanguageModel(hmm.to(device), VOCABULARY), **examples(), particles=5, seed=2,
            proposal=smc.GCD(), algorithm="smc", **ALGORITHMS["strata"],
        )
        for device in (DEVICE, "cpu")
    )  # fmt: skip
    assert_same(found, expected)
