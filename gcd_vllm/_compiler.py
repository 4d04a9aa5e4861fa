"""Compilation of constraints in other processes, so that this process can serve requests.

Compiling a schema takes milliseconds to a second, mostly while holding the interpreter's lock. In a
thread of a server it would delay all other threads. So a `Compilers` object runs `python -m
gcd_vllm._compiler` and exchanges messages with it over pipes. A request is a line of JSON with
the constraint and the limits of work and states. The reply is a line of JSON with a number of
bytes, followed by these bytes. A process that takes too long is killed, and the next constraint
starts another one.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock, Timer
from time import monotonic
from typing import IO, Any

from gcd import ConstraintError, Segments, state_limit, work_limit
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._serialization import pack

NUM_PROCESSES = 2
"""Number of processes that compile at the same time; further constraints wait."""


class CompilerError(Exception):
    """Raised if the process that compiles couldn't be started, or has ended."""


class Compilers:
    """Processes that compile constraints; each starts when it is first needed."""

    def __init__(self) -> None:
        self._places = BoundedSemaphore(NUM_PROCESSES)
        self._lock = Lock()
        self._idle: list[_Process] = []

    def compile(
        self, request: ConstraintRequest, max_work: int, max_states: int, max_seconds: float
    ) -> bytes:
        """Compile the language of a request, and pack it (`gcd_vllm._serialization`).

        This thread waits without the interpreter's lock. If the constraint doesn't compile, or
        takes more than `max_seconds`, a `ConstraintError` is raised. The kind of the request isn't
        "segments".
        """
        given = [request.kind, request.value, request.options, max_work, max_states]
        try:
            line = json.dumps(given).encode() + b"\n"
        except RecursionError:
            raise ConstraintError(f"{request.kind} is nested too deeply; flatten it") from None
        with self._places:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = _Process() if process is None else process
            reply, content = process.ask(line, max_seconds)
            with self._lock:
                self._idle.append(process)
        if "error" in reply:
            raise ConstraintError(reply["error"])
        return content

    def start(self) -> None:
        """Start one process, so that the first request doesn't have to wait for its start."""
        with suppress(ConstraintError, CompilerError):
            self.compile(ConstraintRequest("choice", ["a"]), 1 << 30, 1000, 60.0)

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            while self._idle:
                self._idle.pop().end()


COMPILERS = Compilers()
"""The compilers that this process uses."""
if hasattr(os, "register_at_fork"):  # a forked process must not read replies to this one
    os.register_at_fork(after_in_child=COMPILERS.__init__)  # type: ignore[misc]


class _Process:
    """Process that compiles one constraint at a time; it ends when the current process ends."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", __name__]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            # A new session, so that Ctrl-C doesn't interrupt it; it ends at the end of its input.
            self._process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
        except OSError as error:
            raise CompilerError(f"could not start {command}: {error}") from error

    def ask(self, line: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request; return the reply, and the bytes that follow it."""
        clock, latest = Timer(seconds, self._process.kill), monotonic() + seconds
        clock.daemon = True
        clock.start()
        writing, reading = self._process.stdin, self._process.stdout
        assert writing is not None
        assert reading is not None
        try:
            writing.write(line)
            writing.flush()
            reply = json.loads(reading.readline())
            content = reading.read(reply["size"])
            if len(content) < reply["size"]:
                raise EOFError
        except (OSError, ValueError, EOFError) as error:
            self._process.kill()
            code = self._process.wait()
            if monotonic() >= latest:
                raise ConstraintError(
                    f"expected a constraint that compiles within {seconds:g} s, got none by then; "
                    "simplify it, or raise the server's GCD_VLLM_SECONDS"
                ) from None
            raise CompilerError(
                f"the process that compiles constraints ended with code {code}"
            ) from error
        finally:
            clock.cancel()
        return reply, content

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def main(reading: IO[bytes], writing: IO[bytes]) -> None:
    """Read constraints from the input, and write compiled languages, until the input ends."""
    # Garbage is collected between two requests, so that none waits for it.
    gc.disable()
    gc.freeze()
    for line in reading:
        kind, value, options, max_work, max_states = json.loads(line)
        content, reply = b"", dict[str, Any]()
        try:
            with work_limit(max_work), state_limit(max_states):
                language = ConstraintRequest(kind, value, options=options).language()
            if isinstance(language, Segments):
                raise ConstraintError("expected a constraint with one language, got segments")
            content = pack(language)
        except Exception as error:  # a client's text may cause any exception
            reply["error"] = str(error) or type(error).__name__
        writing.write(json.dumps(reply | {"size": len(content)}).encode() + b"\n" + content)
        writing.flush()
        gc.collect()


if __name__ == "__main__":
    # Output printed during compilation must not become part of a reply.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        main(sys.stdin.buffer, replies)
