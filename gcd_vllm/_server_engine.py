"""Sampling engine on top of a vLLM server with OpenAI's API; it draws parts of particles.

It only uses public fields of requests. For each part:

1. `/v1/completions` with the constraint draws the tokens. With `logprobs_mode=processed_logprobs`
   the server reports log q(x_t), after the mask.
2. A second request to the same path has `prompt_logprobs`, and the tokens at the end of its prompt.
  It reports log p(x_t), without a mask and at temperature 1. Equal sequences are requested once.
  vLLM doesn't use its prefix cache for such a request, so it computes the whole prompt
  (`DrawnPart.scored`).

Then log Z_t = log p(x_t) - log q(x_t).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from gcd import ConstraintError, TokenAutomaton, Vocabulary
from gcd_vllm._admission import NAME, REFUSED
from gcd_vllm._particle_request import PARTICLE, ParticleRequest
from gcd_vllm._parts import DrawnPart, EngineStoppedError, ParticleTask, PartRequest, Plan
from smc._models.protocol import token_ids

START = "vllm serve MODEL --logits-processors gcd_vllm:Processor --logprobs-mode processed_logprobs"
"""Command that starts a suitable server."""
_CERTAIN = 1e-3  # maximum deviation from 0 of the only allowed token's log-probability, in nats
_TIMEOUT = 3600.0
_Text = tuple[tuple[int, ...], tuple[int, ...]]  # prompt, and answer tokens


class ServerEngine:
    """A vLLM server, with the arguments of `gcd_vllm.sample_from_server`.

    A server that doesn't answer, lacks the plugin, has another version of it, or has another mode
    of log-probabilities is refused. One token is generated for this check.
    """

    block_size = None

    def __init__(
        self,
        url: str,
        vocabulary: Vocabulary,
        *,
        model: str | None = None,
        api_key: str | None = None,
        connections: int = 64,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.vocabulary = vocabulary
        self._key, self._connections = api_key, connections
        try:
            served = self._get("/v1/models")["data"]
            found = next(each for each in served if model in (None, each["id"]))
        except (URLError, OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"expected a vLLM server at {self.url}, got {error}; start one: {START}"
            ) from error
        except StopIteration:
            names = ", ".join(each["id"] for each in served)
            raise ValueError(
                f"expected the model {model!r} at {self.url}, which serves {names}"
            ) from None
        self._model = found["id"]
        # Computing log p of a sequence generates one token after it.
        self.context = int(found.get("max_model_len") or 1 << 30) - 1
        self._probe()

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Return a prompt as token ids; a text is tokenized by the server."""
        if not isinstance(prompt, str):
            return token_ids(prompt)
        return list(self._post("/tokenize", {"model": self._model, "prompt": prompt})["tokens"])

    def keep(self, automaton: TokenAutomaton) -> dict[str, str]:
        """Refuse automata, which requests over HTTP can't contain."""
        raise ConstraintError(
            "expected a constraint as requests state it, such as {'json_schema': {...}}, because "
            "the server compiles it; got a TokenAutomaton"
        )

    def check(self, tasks: Sequence[ParticleTask], plan: Plan) -> None:
        """Raise `ValueError` if the temperature isn't 1, because vLLM then doesn't report log p."""
        if plan.temperature != 1:
            raise ValueError(
                "expected temperature=1 over HTTP, because vLLM reports the model's "
                f"log-probabilities only at 1; got {plan.temperature}; use vllm.LLM in process"
            )

    def draw(self, parts: Sequence[PartRequest]) -> list[DrawnPart]:
        """Draw all parts, and compute log p of the drawn tokens, once for equal sequences."""
        with ThreadPoolExecutor(self._connections) as pool:
            asked = {pool.submit(self._draw, part): part for part in parts}
            scores: dict[_Text, Future[tuple[float, ...]]] = {}
            try:
                for each in as_completed(asked):
                    text = _text(asked[each], each.result()[0])
                    if text not in scores:
                        scores[text] = pool.submit(self._score, text)
                log_p_of = {text: each.result() for text, each in scores.items()}
            except ConstraintError:
                raise
            except Exception as error:
                raise EngineStoppedError(error) from error
            finally:
                pool.shutdown(cancel_futures=True)
        found: list[DrawnPart] = []
        for each, part in asked.items():
            ids, log_q, cached = each.result()
            text = _text(part, ids)
            most = 0.0 if part.weighted.pgcd is None else math.inf  # log Z of a mask is at most 0
            log_p = log_p_of[text]
            log_z = tuple(min(most, p - q) for p, q in zip(log_p, log_q, strict=True))
            cost = len(text[0]) + len(ids) if scores.pop(text, None) is not None else 0
            found.append(DrawnPart(ids, log_z, log_p, cached, cost))
        return found

    def _draw(self, part: PartRequest) -> tuple[tuple[int, ...], tuple[float, ...], int]:
        """Draw a part; return its tokens, log q of each, and the number of cached prompt tokens."""
        reply = self._complete(
            [*part.prompt, *part.prefix],
            max_tokens=part.max_tokens,
            seed=part.seed,
            logprobs=0,
            return_token_ids=True,
            vllm_xargs={NAME: part.constraint, PARTICLE: part.weighted.text()},
        )
        (choice,) = reply["choices"]
        if choice["text"].lstrip().startswith(REFUSED.strip()):
            raise ConstraintError(choice["text"])
        details = (reply.get("usage") or {}).get("prompt_tokens_details") or {}
        log_q = tuple(choice["logprobs"]["token_logprobs"])
        return tuple(choice["token_ids"]), log_q, int(details.get("cached_tokens") or 0)

    def _score(self, text: _Text) -> tuple[float, ...]:
        """Request log p of the answer tokens in a text."""
        prompt, ids = text
        reply = self._complete([*prompt, *ids], max_tokens=1, prompt_logprobs=0)
        return prompt_log_p(reply["choices"][0]["prompt_logprobs"], ids)

    def _complete(self, prompt: Sequence[int], **more: Any) -> dict[str, Any]:
        """Request a completion; set every field that affects the distribution explicitly."""
        given = {
            "model": self._model, "prompt": list(prompt), "temperature": 1.0, "top_p": 1.0,
            "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
        }  # fmt: skip
        return self._post("/v1/completions", given | more)

    def _probe(self) -> None:
        """Request one token under a constraint that forces it, and check the server's reply."""
        token = lone_byte(self.vocabulary)
        text = self.vocabulary.token_bytes[token].decode("ascii")
        constraint = json.dumps({"choice": [text], "budget": 2})
        part = PartRequest(0, 0, constraint, (token,), (), 1, 0, 1.0, ParticleRequest(partial=True))
        try:
            ids, log_q, _ = self._draw(part)
        except ConstraintError as error:
            raise ValueError(
                "expected a server whose plugin supports gcd_particle, got one that refuses it "
                f"({error}); install this version on the server, and start it: {START}"
            ) from error
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(
                f"expected a vLLM server at {self.url} that answers /v1/completions with token "
                f"ids, got {error!r}; start one: {START}"
            ) from error
        if ids != (token,):
            raise ValueError(
                f"expected a server with this project's logits processor, got tokens {list(ids)}, "
                f"although the mask only allows [{token}]; start it: {START}"
            )
        if abs(log_q[0]) > _CERTAIN:
            raise ValueError(
                "expected the log-probability 0 for the only token that the mask allows, got "
                f"{log_q[0]:.3f}; start the server with logprobs_mode=processed_logprobs: {START}"
            )

    def _get(self, path: str) -> Any:
        return self._send(Request(self.url + path, headers=self._headers()))

    def _post(self, path: str, given: dict[str, Any]) -> Any:
        body = json.dumps(given).encode()
        return self._send(Request(self.url + path, body, self._headers()))

    def _headers(self) -> dict[str, str]:
        key = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        return {"Content-Type": "application/json"} | key

    def _send(self, request: Request) -> Any:
        try:
            with urlopen(request, timeout=_TIMEOUT) as reply:
                return json.load(reply)
        except HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code == 400:
                raise ConstraintError(
                    f"the server refused a request: {message_of(text)}"
                ) from error
            raise OSError(
                f"expected status 200 from {request.full_url}, got {error.code}: {text[:300]}"
            ) from error


def lone_byte(vocabulary: Vocabulary) -> int:
    """Return a token whose text is an ASCII character that no other token spells.

    Under a constraint to this character, the token is forced.
    """
    count = Counter(vocabulary.token_bytes)
    for code in (*range(48, 127), *range(1, 48)):
        if count[bytes([code])] == 1:
            return vocabulary.token_bytes.index(bytes([code]))
    raise ValueError(
        "expected a vocabulary in which an ASCII character is the text of exactly one token, but "
        "there is no such character, so a server can't be checked; use vllm.LLM in process"
    )


def _text(part: PartRequest, ids: tuple[int, ...]) -> _Text:
    return part.prompt + part.prefix, ids


def prompt_log_p(reported: Sequence[Any], ids: Sequence[int]) -> tuple[float, ...]:
    """Return log p of the last tokens of a prompt, from the `prompt_logprobs` of a reply."""
    last = reported[len(reported) - len(ids) :]
    return tuple(float(each[str(token)]["logprob"]) for each, token in zip(last, ids, strict=True))


def message_of(text: str) -> str:
    """Return the message in the body of an HTTP error, or the beginning of the body."""
    try:
        found = json.loads(text)
        return str((found.get("error") or found)["message"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return text[:300]
