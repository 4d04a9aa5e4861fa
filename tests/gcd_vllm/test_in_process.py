"""The engine in this process: what it is started without, and how it stops; vLLM is a fake."""

from __future__ import annotations

from concurrent.futures import Future
from queue import Queue
from types import SimpleNamespace

import pytest

import gcd
import gcd_vllm
import smc
from gcd_vllm import _in_process
from gcd_vllm._admission import REFUSED
from gcd_vllm._particle_request import VERSION
from tests.gcd_vllm.fakes import VllmConfig

CONSTRAINT = {"regex": "[ab]{4}"}
START = r"start .* with LLM\(model, worker_extension_cls="


class Engine:
    """A `vllm.LLM`, and its engine: each step ends one request, with the first allowed tokens.

    Args:
        tokens: the vocabulary.
        fails: exceptions by number of the step.
        lives: whether workers answer after a failure.
    """

    def __init__(self, tokens, fails=None, lives=True):
        config = VllmConfig(tokens, max_model_len=32)
        config.use_v2_model_runner = False
        config.parallel_config = SimpleNamespace(worker_extension_cls=_in_process.EXTENSION)
        config.cache_config = SimpleNamespace(block_size=16, enable_prefix_caching=True)
        config.model_config.logprobs_mode = "raw_logprobs"
        self.vllm_config, self.llm_engine, self.tokens = config, self, tokens
        self.fails, self.lives, self.steps = fails or {}, lives, 0
        self.status = {"version": VERSION, "processors": 1}
        self.waiting, self.weights, self.aborted, self.refusal = {}, {}, [], None

    def collective_rpc(self, method, args=()):
        if method == "gcd_status":
            return [self.status]
        if not self.lives and self.steps in self.fails:
            raise RuntimeError("the workers have died")
        found, self.weights = self.weights, {}
        return [found]

    def add_request(self, key, prompt, part):
        self.waiting[key] = part

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        self.steps += 1
        if self.steps in self.fails:
            raise self.fails[self.steps]
        key, part = next(iter(self.waiting.items()))
        del self.waiting[key]
        ids = (*b"abab", *self.tokens.eos_ids)[len(part.prefix) :][: part.max_tokens]
        self.weights[key] = self.refusal or [[-0.5, -1.0, 0.0]] * len(ids)
        answer = SimpleNamespace(token_ids=ids)
        finished = SimpleNamespace(
            request_id=key, finished=True, outputs=[answer], num_cached_tokens=0
        )
        return [finished]

    def abort_request(self, keys):
        self.aborted += keys
        for key in keys:
            del self.waiting[key]


@pytest.fixture(autouse=True)
def requests_are_parts(monkeypatch):
    """Pass parts to the engine in place of vLLM's `SamplingParams`."""
    monkeypatch.setattr(_in_process, "parameters", lambda part, *_: part)


def ask(llm, **options):
    given = {"max_tokens": 5, "particles": 4, "seed": 0} | options
    (found,) = gcd_vllm.sample(llm, [[1, 2]], CONSTRAINT, **given)
    return found


def lacking(tokens, *, status=None, extension=_in_process.EXTENSION, others=None, drafts=None):
    llm = Engine(tokens)
    llm.status |= status or {}
    llm.vllm_config.parallel_config.worker_extension_cls = extension
    llm.vllm_config.model_config.logits_processors = others
    llm.vllm_config.speculative_config = drafts
    return llm


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ({"extension": ""}, f"got none; {START}"),
        ({"extension": "other.Extension"}, f"or a subclass, got 'other.Extension'.*{START}"),
        (
            {"status": {"processors": 0}},
            f"{_in_process._PROCESSOR} in the engine, got none; {START}",
        ),
        ({"status": {"version": -1}}, f"expected version {VERSION} of the plugin .* got -1"),
        ({"others": ["other:Processor"]}, r"only logits processor, got also \['other:Processor'\]"),
        ({"drafts": object()}, "speculative"),
    ],
)
def test_an_engine_that_lacks_the_plugin_is_refused(lacks, message, tokens, monkeypatch):
    llm = lacking(tokens, **lacks)
    if lacks.get("extension"):
        monkeypatch.delattr(Engine, "collective_rpc")
    with pytest.raises(ValueError, match=message):
        ask(llm)
    assert llm.steps == 0


class Own(smc.GCD):
    """A proposal whose `guide` the engine wouldn't call."""


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        *(
            (prompt, {}, "expected a prompt to be text or token ids, got")
            for prompt in ([1.5], ["1"], b"ab", [{"role": "user", "content": "a"}])
        ),
        ([1, 2], {"proposal": Own()}, r"expected proposal 'gcd', 'lcd' or gcd_vllm.PGCD"),
        ([1, 2], {"max_tokens": 31}, "context of 32"),
        ([1] * 28, {}, "context of 32"),
        ([1, 2], {"max_tokens": 2}, "needs at least 3"),
    ],
)
def test_a_wrong_call_is_refused_before_any_step(prompt, options, message, tokens):
    llm = Engine(tokens)
    with pytest.raises(ValueError, match=message):
        gcd_vllm.sample(llm, [prompt], CONSTRAINT, **{"max_tokens": 5, "particles": 4} | options)
    assert llm.steps == 0
    with pytest.raises(ValueError, match=r"expected a vllm\.LLM, got str"):
        ask("http://localhost:8000")


@pytest.mark.parametrize("lives", [True, False])
def test_an_engine_that_stops_in_a_later_part_is_an_error(lives, tokens):
    """The first part of four particles takes four steps; the second part fails in its third."""
    llm = Engine(tokens, {7: RuntimeError("out of memory")}, lives)
    stopped = r"expected a running engine, got one that stopped \(RuntimeError: out of memory\)"
    with pytest.raises(gcd_vllm.EngineStoppedError, match=stopped) as error:
        ask(llm, chunk=2)
    assert error.value.__cause__ is llm.fails[7]
    assert len(llm.aborted) == 2
    assert not llm.waiting
    assert not lives or not llm.weights


def test_many_particles_are_drawn_in_batches(tokens, monkeypatch):
    monkeypatch.setattr(_in_process, "_AT_ONCE", 3)
    llm = Engine(tokens)
    draw, most = llm.add_request, []
    llm.add_request = lambda *given: most.append(len(llm.waiting)) or draw(*given)
    assert ask(llm, particles=8).log_evidence == pytest.approx(5 * -0.5)
    assert most == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("waits_for", ["outputs", "weights"])
def test_a_call_that_waits_for_a_dead_process_ends(waits_for, tokens):
    """vLLM's client marks itself as dead, and doesn't wake the waiting thread."""
    llm = Engine(tokens)
    llm.engine_core = SimpleNamespace(
        resources=SimpleNamespace(engine_dead=False), outputs_queue=Queue(), utility_results={}
    )
    step, rpc = llm.step, llm.collective_rpc

    def wait_for_outputs():
        if llm.steps == 6:
            llm.engine_core.resources.engine_dead = True
            raise llm.engine_core.outputs_queue.get(timeout=600)
        return step()

    def wait_for_weights(method, args=()):
        if method != "gcd_status" and (llm.steps == 8 or llm.engine_core.resources.engine_dead):
            llm.engine_core.resources.engine_dead = True
            results = llm.engine_core.utility_results
            results[len(results)] = future = Future()
            return future.result(timeout=600)
        return rpc(method, args)

    if waits_for == "outputs":
        llm.step = wait_for_outputs
    llm.collective_rpc = wait_for_weights
    with pytest.raises(gcd_vllm.EngineStoppedError, match="the engine's process has ended"):
        ask(llm, chunk=2)
    llm.collective_rpc = lambda *_, **__: wait_for_outputs()
    llm.steps = 6
    with pytest.raises(ValueError, match="expected a running engine, got one whose process has"):
        ask(llm)
    llm.collective_rpc = lambda *_: [llm.status]
    llm.add_request = lambda *_: wait_for_outputs()
    with pytest.raises(gcd_vllm.EngineStoppedError, match="the engine's process has ended"):
        ask(llm)


def test_an_interrupted_call_leaves_no_request_and_no_weight(tokens):
    llm = Engine(tokens, {3: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        ask(llm)
    assert len(llm.aborted) == 2
    assert not llm.waiting
    assert not llm.weights
    assert ask(llm).log_evidence == pytest.approx(5 * -0.5)


def test_a_refusal_by_the_engine_is_an_error(tokens):
    """A worker can refuse a request that the frontend has accepted, if there is no memory."""
    llm = Engine(tokens)
    llm.refusal = f"{REFUSED}expected a constraint of at most 0 bytes"
    with pytest.raises(gcd.ConstraintError, match="expected a constraint of at most 0 bytes"):
        ask(llm)
