"""Lifting of constraints (their conversion to automata over tokens) in background threads.

A `BackgroundLift` belongs to one constraint, which it references weakly. If nothing else references
the constraint any longer, its lift is skipped if it is queued, and canceled at its next check if it
is running. Threads end when the queue is empty, and don't prevent a process from exiting. After a
fork, the child process restarts unfinished lifts.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any
from weakref import ref

import numpy as np
from jaxtyping import Int32

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._serving.served import ServedAutomaton
from gcd._support.stopping import WorkStoppedError, stop_if_asked, stop_when
from gcd._tokens.lifting import lift_numbered
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import Vocabulary

_LOG = logging.getLogger("gcd")
MAX_THREADS = 1
"""Number of threads that lift at the same time."""


class BackgroundLift:
    """Lift of one constraint in another thread.

    Args:
        owner: the object that needs the result; referenced weakly.
        language: the constraint.
        vocabulary: the tokens.
        max_bytes: maximum size of the lifted table in bytes.
        take: function that is called with the owner and the result, in the background thread.
        keep: optional function that is called with the lifted automaton before it is released.

    Attributes:
        reason: why there is no result; None before the end and after success.
    """

    def __init__(
        self,
        owner: Any,
        language: Automaton,
        vocabulary: Vocabulary,
        max_bytes: int,
        take: Callable[[Any, ServedAutomaton, Int32[np.ndarray, "S1"]], None],
        keep: Callable[[TokenAutomaton], None] | None = None,
    ) -> None:
        self._owner = ref(owner)
        self._language, self._vocabulary = language, vocabulary
        self._max_bytes, self._take, self._keep = max_bytes, take, keep
        self._done = Event()
        self.reason: str | None = None

    @property
    def is_done(self) -> bool:
        """True if the lift has ended, successfully or not."""
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the lift; return whether it has ended."""
        return self._done.wait(seconds)

    def run(self) -> None:
        """Lift the constraint; if that fails, store the error's message in `reason`."""
        if self._done.is_set() or self._owner() is None:
            return
        try:
            with stop_when(lambda: self._owner() is None):
                lifted, number = lift_numbered(self._language, self._vocabulary, self._max_bytes)
                stop_if_asked()
                if self._keep is not None:
                    self._keep(lifted)
                made = ServedAutomaton(lifted)
                del lifted
            owner = self._owner()
            if owner is not None:
                self._take(owner, made, number)
        except WorkStoppedError:
            return
        except ConstraintError as error:
            self.reason = str(error)
            _LOG.info("constraint not lifted, keeping the lazy form: %s", error)
        except BaseException as error:
            self.reason = f"{type(error).__name__}: {error}"
            _LOG.warning("lift of a constraint failed, keeping the lazy form: %s", self.reason)
        finally:
            self._done.set()


class _Threads:
    """Queued lifts, and the threads that run them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[BackgroundLift] = deque()
        self._running: set[BackgroundLift] = set()
        self._threads = 0

    def submit(self, lift: BackgroundLift) -> None:
        with self._lock:
            self._waiting.append(lift)
            if self._threads == MAX_THREADS:
                return
            self._threads += 1
        Thread(target=self._work, name="gcd-lift", daemon=True).start()

    def hurry(self, lift: BackgroundLift) -> None:
        """Move a lift to the front of the queue, if it is queued."""
        with self._lock:
            if lift in self._waiting:
                self._waiting.remove(lift)
                self._waiting.appendleft(lift)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                lift = self._waiting.popleft()
                self._running.add(lift)
            try:
                lift.run()
            finally:
                with self._lock:
                    self._running.discard(lift)
            del lift

    def restart(self) -> None:
        """Restart unfinished lifts in a forked process, which doesn't have the threads."""
        unfinished = [*self._running, *self._waiting]
        self.__init__()  # type: ignore[misc]
        for lift in unfinished:
            self.submit(lift)


_THREADS = _Threads()
submit, hurry = _THREADS.submit, _THREADS.hurry
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_THREADS.restart)
