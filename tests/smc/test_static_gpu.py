"""The static step on a CUDA device: captured it is what it is eagerly, and nothing in it waits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import smc
from gcd.languages.text.regex import regex
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.lifting import lift
from hmm.model import HMM
from smc.draw import CounterDraw
from smc.proposals import Batch
from smc.static import StaticFilter, StaticSampler, StaticTransformer, candidates_of, pass_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STORIES = Path(__file__).resolve().parents[1] / "models" / "stories260K"


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float64).cuda()
    return smc.TransformersLM(model, transformers.AutoTokenizer.from_pretrained(STORIES))


def proposal_of(name: str, lm: smc.TransformersLM) -> smc.Proposal:
    if name != "pgcd":
        return {"lm": smc.LM, "lcd": smc.LCD, "gcd": smc.GCD}[name]()
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(8, lm.vocabulary.size, generator=generator, dtype=torch.float64)
    return smc.PGCD(hmm.to("cuda"), exact_top_k=8)


def loop(
    lm: smc.TransformersLM, algorithm: str, name: str, *, graph: bool, fused: str
) -> StaticSampler | StaticFilter:
    automaton = lift(regex(r"(Once|One day|Tom)[a-z ,]{0,40}\."), lm.vocabulary)
    batch = Batch(
        AutomatonBatch([automaton] * 2, device="cuda"), torch.tensor([12, 9], device="cuda")
    )
    given = StaticTransformer(lm), proposal_of(name, lm), batch
    shared = {
        "examples": torch.arange(2, device="cuda"),
        "num_particles": 6,
        "draw": CounterDraw(3),
        "graph": graph,
    }
    if algorithm == "smc":
        over = pass_of(fused, lm.device)
        return StaticSampler(*given, ess_threshold=0.9, whole_vocabulary=over, **shared)
    return StaticFilter(*given, share=0.25, candidates=candidates_of(fused, lm.device), **shared)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("name", ["lm", "lcd", "gcd", "pgcd"])
def test_a_captured_step_is_the_eager_one(
    stories: smc.TransformersLM, name: str, algorithm: str
) -> None:
    pytest.importorskip("triton")
    prompts = [stories.encode("A story. "), stories.encode("The ")]
    expected = loop(stories, algorithm, name, graph=False, fused="torch").run(prompts)
    for graph, fused in ((False, "triton"), (True, "torch"), (True, "triton")):
        found = loop(stories, algorithm, name, graph=graph, fused=fused).run(prompts)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.allclose(found.log_weight, expected.log_weight, rtol=0, atol=1e-9)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", ["lm", "lcd", "gcd", "pgcd"])
def test_nothing_waits_for_the_device(
    stories: smc.TransformersLM, name: str, graph: bool, algorithm: str
) -> None:
    run = loop(stories, algorithm, name, graph=graph, fused="auto")
    run.prepare([stories.encode("A story. "), stories.encode("The ")])
    if not graph:
        run.advance()  # tables that are made once, at first use
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            run.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not bool(run.slots.failed)
