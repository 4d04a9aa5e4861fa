"""Posteriors over HTTP from `vllm serve`, with a small random model, against brute force."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch

import gcd
import gcd_vllm
import hmm
from gcd_cli._sources import vocabulary as read_vocabulary
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._server_engine import ServerEngine
from tests_vllm.oracle import Oracle, log_sum

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

CHOICE = {"choice": ["yes", "no", "none", "yesterday"]}
BUDGET = 5
PROMPT = [1, 9, 40, 13]

servers: list[subprocess.Popen] = []
"""All servers that were started."""


@contextlib.contextmanager
def serving(folder, log, *more, hmms=""):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder,
        "--dtype", "float32", "--max-model-len", "64", "--max-num-seqs", "16",
        "--port", str(port), "--enforce-eager", "--block-size", "32", *more,
    ]  # fmt: skip
    given = os.environ | {"GCD_VLLM_RESPONSE_FORMAT": "1", "GCD_VLLM_HMMS": str(hmms)}
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=given)
    servers.append(server)
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(900):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{base}/health").close()
                break
            if server.poll() is not None:
                break
            time.sleep(1)
        assert server.poll() is None, log.read_text()[-3000:]
        yield base
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="module")
def url(peaked_llama, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    more = ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    seeded = torch.Generator().manual_seed(0)
    model = hmm.HMM.random(6, 512, generator=seeded, concentration=0.3)
    hmm.save(model, log.parent / "random")
    with serving(peaked_llama, log, *more, hmms=log.parent) as base:
        yield base


def ask(url, folder, **more):
    given = {"vocabulary": read_vocabulary(folder), "max_tokens": BUDGET, "particles": 48} | more
    return gcd_vllm.sample_from_server(url, [PROMPT], CHOICE, **given)[0]


@pytest.mark.parametrize("chunk", [None, 2])
def test_each_token_has_the_weight_and_probability_of_brute_force(url, peaked_llama, chunk):
    found = ask(url, peaked_llama, chunk=chunk)
    language = ConstraintRequest("choice", CHOICE["choice"]).language()
    automaton = gcd.lift(language, read_vocabulary(peaked_llama))
    oracle = Oracle(peaked_llama, automaton, tuple(PROMPT))
    for particle in found.particles:
        assert particle.finished
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        log_z = oracle.log_z(particle.ids, BUDGET)
        assert particle.token_log_z == pytest.approx(log_z, abs=1e-4)
    exact = log_sum(oracle.answers(BUDGET).values())
    assert abs(found.log_evidence - exact) < 4 * found.reliability.log_evidence_error
    assert sum(part.scored_tokens for part in found.diagnostics.parts) > 0


@pytest.mark.parametrize("chunk", [None, 2])
def test_pgcd_finds_the_evidence(url, peaked_llama, chunk):
    twist = gcd_vllm.PGCD("random", exact_top_k=8, defense=0.05)
    found = ask(url, peaked_llama, proposal=twist, particles=100, chunk=chunk)
    language = ConstraintRequest("choice", CHOICE["choice"]).language()
    automaton = gcd.lift(language, read_vocabulary(peaked_llama))
    oracle = Oracle(peaked_llama, automaton, tuple(PROMPT))
    for particle in found.particles:
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
    differences = [
        abs(ratio - log_z)
        for each in found.particles
        for ratio, log_z in zip(each.token_log_z, oracle.log_z(each.ids, BUDGET), strict=True)
    ]
    assert max(differences) > 0.05, "the tokens were drawn under GCD's mask"
    exact = log_sum(oracle.answers(BUDGET).values())
    assert abs(found.log_evidence - exact) < 4 * found.reliability.log_evidence_error
    with pytest.raises(gcd.ConstraintError, match=r"GCD_VLLM_HMMS \(random\), got 'another'"):
        ask(url, peaked_llama, proposal=gcd_vllm.PGCD("another"))


def test_text_is_tokenized_by_the_server(url, peaked_llama):
    vocabulary = read_vocabulary(peaked_llama)
    (found,) = gcd_vllm.sample_from_server(
        url, ["Once upon"], CHOICE, vocabulary=vocabulary, max_tokens=BUDGET, particles=4
    )
    assert found.valid


def test_an_unchanged_client_gets_finished_answers(url, peaked_llama):
    """The server was started with GCD_VLLM_RESPONSE_FORMAT=1."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", timeout=1800) as client:
        asked = {"model": peaked_llama, "prompt": "Once upon", "max_tokens": 24}
        schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        found = client.completions.create(**asked, n=4, extra_body={"response_format": form})
    for choice in found.choices:
        assert choice.finish_reason == "stop"
        assert set(json.loads(choice.text)) == {"a"}


def test_a_server_in_another_mode_is_recognized(peaked_llama, tmp_path):
    with (
        serving(peaked_llama, tmp_path / "log") as base,
        pytest.raises(ValueError, match="logprobs_mode=processed_logprobs"),
    ):
        ask(base, peaked_llama)


@pytest.mark.parametrize("which", ["server", "engine"])
def test_a_call_ends_if_a_process_is_killed(peaked_llama, tmp_path, monkeypatch, which):
    """The server is killed when the tenth distinct answer has its weights, or its engine is."""
    psutil = pytest.importorskip("psutil")
    score, scored, killed = ServerEngine._score, [], []

    def scored_once_more(self, text):
        found = score(self, text)
        scored.append(text)
        if len(scored) == 10:
            server = psutil.Process(servers[-1].pid)
            children = server.children(recursive=True)
            engine = next(each for each in children if "EngineCore" in " ".join(each.cmdline()))
            (server if which == "server" else engine).send_signal(signal.SIGKILL)
            killed.extend([time.monotonic(), *children])
        return found

    monkeypatch.setattr(ServerEngine, "_score", scored_once_more)
    more = ["--logprobs-mode", "processed_logprobs"]
    constraint = {"regex": "[ab]{1,4}[ab]"}
    with serving(peaked_llama, tmp_path / "log", *more) as base:
        vocabulary = read_vocabulary(peaked_llama)
        with pytest.raises(gcd_vllm.EngineStoppedError, match="expected a running engine, got"):
            gcd_vllm.sample_from_server(
                base, [PROMPT], constraint, vocabulary=vocabulary, max_tokens=6, particles=60,
                chunk=None, connections=4,
            )  # fmt: skip
        assert time.monotonic() - killed[0] < 60
    for process in killed[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
