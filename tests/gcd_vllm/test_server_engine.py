"""Posteriors over HTTP, from a made-up server whose model is a toy."""

from __future__ import annotations

import json
import math
import random
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from click.testing import CliRunner

import gcd
import gcd_vllm
from gcd_cli._main import main
from gcd_cli._sources import vocabulary as read_vocabulary
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._server_engine import message_of, prompt_log_p
from smc.testing import ToyLM, target
from tests.gcd_vllm.fakes import lifted

VOCABULARY = gcd.Vocabulary.from_bytes([b"a", b"b", b"ab", b"1", b"", b""], [4, 5])
CHOICE = {"choice": ["ab", "abb", "ba"]}


class Server:
    """A stand-in for `vllm serve`, with the fields that clients use.

    Attributes:
        plugin: whether it knows of constraints.
        raw: whether log-probabilities are those before the mask.
        fail_after: completions after which it only answers with status 500.
    """

    def __init__(self, plugin=True, raw=False, fail_after=10**9, vocabulary=VOCABULARY):
        self.lm, self.vocabulary = ToyLM(vocabulary, seed=4), vocabulary
        self.plugin, self.raw, self.fail_after = plugin, raw, fail_after
        self.asked = []

    def complete(self, given):
        self.asked.append(given)
        if len(self.asked) > self.fail_after:
            return 500, {"error": {"message": "engine died"}}
        prompt, extra = given["prompt"], given.get("vllm_xargs")
        if "prompt_logprobs" in given:
            reported = [None] + [
                {str(v): {"logprob": float(self.lm.log_p(tuple(prompt[:t]))[v])}}
                for t, v in enumerate(prompt)
                if t
            ]
            return 200, {"choices": [{"text": "a", "prompt_logprobs": reported}]}
        for name in ("top_p", "repetition_penalty", "temperature"):
            assert given[name] == 1
        assert given["top_k"] == given["min_p"] == 0
        request = ConstraintRequest.parse(extra["gcd"])
        if "x" in request.value:
            return 400, {"error": {"message": "no such thing"}}
        particle = json.loads(extra["gcd_particle"])
        prefix = prompt[len(prompt) - particle["prefix_tokens"] :]
        text = json.dumps({request.kind: request.value})
        matcher = gcd.Matcher(lifted(text, self.vocabulary), budget=request.budget)
        assert all(map(matcher.advance, prefix))
        rng, ids, log_q = random.Random(given["seed"]), [], []
        while len(ids) < given["max_tokens"] and not matcher.is_finished:
            log_p = self.lm.log_p((*prompt, *ids))
            words = matcher.mask()
            allowed = torch.tensor(
                [bool(words[v // 32] >> v % 32 & 1) for v in range(self.vocabulary.size)]
            )
            if not self.plugin:
                allowed[:] = torch.arange(self.vocabulary.size) == 0
            masked = log_p.masked_fill(~allowed, -math.inf).log_softmax(0)
            (token,) = rng.choices(range(self.vocabulary.size), masked.exp().tolist())
            ids.append(token)
            log_q.append(float((log_p if self.raw else masked)[token]))
            if self.plugin:
                assert matcher.advance(token)
        choice = {"text": "", "token_ids": ids, "logprobs": {"token_logprobs": log_q}}
        usage = {"prompt_tokens_details": {"cached_tokens": 1}}
        return 200, {"choices": [choice], "usage": usage}

    def reply(self, path, given):
        if path == "/v1/models":
            return 200, {"data": [{"id": "toy", "max_model_len": 20}]}
        if path == "/tokenize":
            assert given["model"] == "toy"
            return 200, {"tokens": [ord(each) - ord("a") for each in given["prompt"]]}
        return self.complete(given)


@contextmanager
def serving(server):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, given):
            code, body = server.reply(self.path, given)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    class Many(ThreadingHTTPServer):
        request_queue_size = 128

    http = Many(("127.0.0.1", 0), Handler)
    Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


def ask(url, constraint=CHOICE, **more):
    given = {"vocabulary": VOCABULARY, "max_tokens": 4, "particles": 16} | more
    return gcd_vllm.sample_from_server(url, ["ab"], constraint, **given)[0]


@pytest.mark.parametrize("chunk", [None, 1])
def test_weights_are_those_of_the_model_and_the_mask(chunk):
    server = Server()
    with serving(server) as url:
        found = ask(url, chunk=chunk)
    exact = target(server.lm, (0, 1), lifted(json.dumps(CHOICE), VOCABULARY), 4)
    for each in found.particles:
        assert each.finished
        assert each.log_p == pytest.approx(math.log(exact[each.ids]))
        if chunk is None:
            assert each.log_weight == pytest.approx(sum(each.token_log_z))
    evidence = math.log(sum(exact.values()))
    assert abs(found.log_evidence - evidence) < 4 * found.reliability.log_evidence_error + 1e-6
    first = found.diagnostics.parts[0]
    assert first.cached_tokens == 16
    scored = [each for each in server.asked if "prompt_logprobs" in each]
    read = sum(part.scored_tokens for part in found.diagnostics.parts)
    assert read == sum(len(each["prompt"]) for each in scored)
    assert len(scored) < 16 * (1 if chunk is None else 4)  # equal ones once


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(plugin=False), "expected a server with this project's logits processor"),
        (Server(raw=True), "logprobs_mode=processed_logprobs"),
        (Server(fail_after=0), "answers /v1/completions"),
    ],
)
def test_one_token_shows_what_a_server_lacks(server, message):
    with serving(server) as url:
        with pytest.raises(ValueError, match=message) as error:
            ask(url)
        assert "vllm serve MODEL --logits-processors gcd_vllm:Processor" in str(error.value)
        assert len(server.asked) == 1


def test_bad_inputs_are_refused_after_one_token_at_most():
    server = Server()
    with pytest.raises(ValueError, match="expected a vLLM server at"):
        ask("http://127.0.0.1:9")
    with serving(server) as url:
        for wrong, message in (
            ({"max_tokens": 1}, "needs at least"),
            ({"max_tokens": 18}, "context of 19"),
            ({"model": "other"}, "expected the model 'other'"),
            ({"connections": 0}, "connections of at least 1"),
        ):
            with pytest.raises(ValueError, match=message):
                ask(url, **wrong)
    assert all(each["max_tokens"] == 1 for each in server.asked)


def test_a_server_that_dies_or_refuses_is_reported():
    with serving(Server()) as url, pytest.raises(gcd.ConstraintError, match="no such thing"):
        ask(url, {"choice": ["ab", "x"]})
    stopped = pytest.raises(gcd_vllm.EngineStoppedError, match="expected a running engine, got")
    with serving(Server(fail_after=9)) as url, stopped:
        ask(url)


def test_replies_are_read_by_token():
    reported = [None, {"3": {"logprob": -1.0}, "7": {"logprob": -2.0}}, {"4": {"logprob": -0.5}}]
    assert prompt_log_p(reported, [7, 4]) == (-2.0, -0.5)
    assert message_of('{"error": {"message": "m"}}') == "m"
    assert message_of("<html>") == "<html>"


def test_the_command_samples_from_a_server(tmp_path):
    """The model's folder is read for its tokens alone."""
    folder = str(Path(__file__).parents[1] / "models" / "stories260K")
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    common = [str(schema), "--model", folder, "--max-tokens", "8", "--prompt", "ab"]
    with serving(Server(vocabulary=read_vocabulary(folder))) as url:
        given = ["sample", *common, "--server", url, "--particles", "8"]
        found = CliRunner().invoke(main, [*given, "--json"], catch_exceptions=False)
        shown = CliRunner().invoke(main, given, catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    report = json.loads(found.stdout)
    assert found.exit_code == shown.exit_code == 0
    assert {each["text"] for each in report["answers"]} <= {'"yes"', '"no"'}
    assert report["valid"]
    assert report["certified"] is None
    assert "P(valid and within 8 tokens) is about e^(" in shown.stdout
    for more in (["--proposal", "lm"], ["--algorithm", "discrete"], ["--deadline", "2"]):
        wrong = CliRunner().invoke(main, ["sample", *common, "--server", url, *more])
        assert wrong.exit_code == 2
        assert "--server" in wrong.stderr.split("Error: ")[1]
    gone = CliRunner().invoke(main, ["sample", *common, "--server", url])
    assert gone.exit_code != 0
    assert "expected a vLLM server at" in gone.stderr
