"""Cache of requests' constraints, compiled for one vocabulary.

A server receives the same few constraints over and over, and compiling one takes milliseconds to
seconds while other requests wait. So these are cached by content (`ConstraintRequest.key`):

* lifted automata, the most recently used ones, up to a number of bytes;
* errors of refused constraints, so that a repeated bad request isn't compiled again.

Other requests don't have to wait while a constraint is compiled. `ConstraintCache.prepare`, called
in another thread, compiles in another process (`gcd_vllm._compiler`) and lifts in its own
thread. A call of `get` with the same request then returns at once. Automata and languages can be
passed to another process as bytes (`export`, `put`).

Compilation is bounded by `gcd.work_limit` and `gcd.state_limit`, in another process also by time,
and the size of the automaton by a number of bytes. The cache is thread-safe. One thread compiles at
a time, because the caches it uses aren't thread-safe. Meanwhile, other threads get constraints that
are in memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from threading import Lock

from gcd import (
    Automaton,
    ConstraintError,
    Segments,
    TokenAutomaton,
    Vocabulary,
    check_budget,
    lift,
    state_limit,
    work_limit,
)
from gcd_vllm._compiler import COMPILERS, CompilerError
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._serialization import pack, unpack

_LOG = logging.getLogger("gcd")
MAX_WORK = 500_000_000
"""Units of work for one constraint (`gcd.work_limit`): a second or two."""
MAX_STATES = 50_000
"""States of one automaton over bytes (`gcd.state_limit`), which bound the cost of lifting."""
MAX_SECONDS = 30.0
"""Time to compile a constraint in another process, in seconds."""
MAX_BYTES = 256 << 20
"""Bytes of the automata in memory."""
_REFUSALS = 1024
_VARIABLES = {
    "the limit: `with gcd.work_limit(n):`": "the server's GCD_VLLM_WORK",
    "the limit: `with gcd.state_limit(n):`": "the server's GCD_VLLM_STATES",
}
_MOST_LANGUAGES = 64  # compiled languages
_MOST_LANGUAGE_BYTES = 32 << 20  # of all of them
_MOST_LIFTED = 32 << 20  # bytes of an automaton that is passed to another process
_MOST_PACKED = 1 << 20  # bytes that are passed to another process with each request
_LONGEST_REASON = 500  # characters; the message may quote a schema


class ConstraintCache:
    """Lifted automata of requests, for one vocabulary.

    The limits on work, states and seconds are for each constraint. The limit on bytes is for all
    tables in memory; one constraint may use half of it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        max_work: int = MAX_WORK,
        max_states: int = MAX_STATES,
        max_seconds: float = MAX_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.vocabulary = vocabulary
        self.max_work, self.max_states, self.max_bytes = max_work, max_states, max_bytes
        self.max_seconds = max_seconds
        self._known: OrderedDict[str, TokenAutomaton] = OrderedDict()
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._languages: OrderedDict[str, Automaton] = OrderedDict()
        self._packed: dict[str, bytes] = {}
        self._preparing: dict[str, Lock] = {}
        self._bytes = 0
        self._lock, self._compiling = Lock(), Lock()

    def get(self, request: ConstraintRequest) -> TokenAutomaton:
        """Return the automaton of a request's constraint; equal constraints share one."""
        key = request.key
        known = self._recall(key)
        if known is not None:
            return known
        with self._compiling:
            known = self._recall(key)  # compiled while this thread waited
            return known if known is not None else self._make(key, request)

    def keep(self, automaton: TokenAutomaton) -> ConstraintRequest:
        """Store an automaton that was lifted elsewhere; return the request that names it."""
        if automaton.vocabulary.fingerprint != self.vocabulary.fingerprint:
            raise ConstraintError(
                f"expected a constraint over the engine's vocabulary of {self.vocabulary.size} "
                f"tokens, got one over another vocabulary of {automaton.vocabulary.size} tokens; "
                "lift it to the vocabulary of the engine's tokenizer"
            )
        digest = blake2b(digest_size=16)
        for array in (automaton.class_of, *automaton.rows):
            digest.update(array.tobytes())
        digest.update(repr((automaton.initial, automaton.eos_class, automaton.max_bytes)).encode())
        request = ConstraintRequest("lifted", digest.hexdigest())
        with self._lock:
            is_known = request.key in self._known
        if not is_known:
            self._remember(request.key, automaton)
        return request

    def prepare(self, request: ConstraintRequest) -> None:
        """Do the work of `get` and `export`, so that they return at once for an equal request.

        The language is compiled in another process, so other threads aren't delayed. Lifting
        releases the interpreter's lock most of the time. Errors are cached, and raised by `get`.
        """
        key = request.key
        with self._lock:
            turn = self._preparing.setdefault(key, Lock())
        try:
            with turn, suppress(ConstraintError):  # cached
                self._prepare_language(key, request)
                self.get(request)
                self.export(request)
        finally:
            self._preparing.pop(key, None)

    def _prepare_language(self, key: str, request: ConstraintRequest) -> None:
        if self._recall(key) or key in self._languages or request.kind == "segments":
            return
        try:
            packed = COMPILERS.compile(request, self.max_work, self.max_states, self.max_seconds)
        except CompilerError as error:
            _LOG.warning("compiling in this process, which delays other requests: %s", error)
            return
        except ConstraintError as error:
            self._refuse(key, error)
            raise
        language = unpack(packed)
        assert isinstance(language, Automaton), "without a vocabulary it isn't lifted"
        self._keep_language(key, language, packed)

    def export(self, request: ConstraintRequest) -> bytes | None:
        """Return the constraint of a request as bytes, for `put` in another process.

        The automaton is preferred to the language, so that only one process lifts it. The result is
        None if neither is cached, or there would be too many bytes for each request.
        """
        key, is_named = request.key, request.kind == "lifted"
        with self._lock:
            lifted, language = self._known.get(key), self._languages.get(key)
            packed = self._packed.get(key)
        if packed is None:
            packed = b""
            if lifted is not None and (is_named or lifted.nbytes <= _MOST_LIFTED):
                packed = pack(lifted)
            if language is not None and (not packed or len(packed) > _MOST_PACKED):
                packed = pack(language)
            if len(packed) > _MOST_PACKED and not is_named:
                packed = b""
            self._packed[key] = packed
        return packed or None

    def put(self, request: ConstraintRequest, packed: bytes) -> None:
        """Store the constraint of a request, which another process compiled."""
        key = request.key
        if key in self._known or key in self._languages:
            return
        found = unpack(packed, self.vocabulary)
        if isinstance(found, TokenAutomaton):
            self._remember(key, found)
        else:
            self._recall(key)
            self._keep_language(key, found)

    def _keep_language(self, key: str, language: Automaton, packed: bytes | None = None) -> None:
        with self._lock:
            self._languages[key] = language
            self._packed.pop(key, None)
            if packed is not None and len(packed) <= _MOST_PACKED:
                self._packed[key] = packed
            sizes = [each.delta.nbytes for each in self._languages.values()]
            while len(sizes) > _MOST_LANGUAGES or (
                len(sizes) > 1 and sum(sizes) > _MOST_LANGUAGE_BYTES
            ):
                self._packed.pop(self._languages.popitem(last=False)[0], None)
                del sizes[0]

    def _recall(self, key: str) -> TokenAutomaton | None:
        with self._lock:
            if key in self._refused:
                raise ConstraintError(self._refused[key])
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            return known

    def _make(self, key: str, request: ConstraintRequest) -> TokenAutomaton:
        try:
            found = self._compile(request)
        except Exception as error:  # a client's text may cause any exception
            reason = self._refuse(key, error)
            if isinstance(error, ConstraintError) and reason == str(error):
                raise
            raise ConstraintError(reason) from error
        self._remember(key, found)
        return found

    def _refuse(self, key: str, error: Exception) -> str:
        """Store the error of a refused constraint, and return the error."""
        reason = str(error) or type(error).__name__
        for call, variable in _VARIABLES.items():
            reason = reason.replace(call, variable)
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[:_LONGEST_REASON]}…"
        with self._lock:
            self._refused[key] = reason
            if len(self._refused) > _REFUSALS:
                self._refused.popitem(last=False)
        return reason

    def _remember(self, key: str, found: TokenAutomaton) -> None:
        with self._lock:
            if key in self._known:
                self._bytes -= self._known.pop(key).nbytes
            self._known[key] = found
            self._refused.pop(key, None)  # of a request that named it before it was known
            self._packed.pop(key, None)  # the language
            self._bytes += found.nbytes
            while self._bytes > self.max_bytes:
                oldest, automaton = self._known.popitem(last=False)
                self._packed.pop(oldest, None)
                self._bytes -= automaton.nbytes

    def _compile(self, request: ConstraintRequest) -> TokenAutomaton:
        with self._lock:
            language: Automaton | Segments | None = self._languages.get(request.key)
        with work_limit(self.max_work), state_limit(self.max_states):
            if language is None:
                language = request.language()
                if isinstance(language, Automaton):
                    self._keep_language(request.key, language)
            found = lift(language, self.vocabulary)
        if found.nbytes > self.max_bytes // 2:
            raise ConstraintError(
                f"expected a constraint of at most {self.max_bytes >> 21} MiB, got "
                f"{found.nbytes >> 20} MiB; simplify it, or raise the limit of the cache"
            )
        return found


def usable_budget(automaton: TokenAutomaton, limits: dict[str, int]) -> int:
    """Return the smallest of several limits on an answer's tokens, EOS included."""
    name = min(limits, key=lambda each: limits[each])
    check_budget(automaton, limits[name], f"the constraint within {name}")
    return limits[name]
