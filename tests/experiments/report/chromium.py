"""Chromium without a window, controlled through two pipes by the Chrome DevTools Protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

_SECONDS = 300.0  # for an answer, on a busy machine

_ASK = """
(async () => {
  const found = {};
  (() => { %s })();
  await new Promise((resume) => setTimeout(resume, 300));  // the address is written after 150 ms
  return { ...found, hash: location.hash };
})()
"""


class Chromium:
    """One browser for all tests of a module, because a browser takes a second to start."""

    def __enter__(self) -> Chromium:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def connect() -> None:
            # The browser reads commands from 3 and writes answers to 4.
            reads, writes = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self._process = subprocess.Popen(
            [
                PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
                "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}",
            ],
            preexec_fn=connect, pass_fds=(3, 4),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in, self._unread = ours_out, ours_in, b""
        self._sent = 0
        self._events: list[dict[str, Any]] = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send("Browser.close")
        self._process.wait(timeout=600)
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def ask(self, page: Path, script: str, address: str = "", width: int = 1000) -> dict[str, Any]:
        """Open a page, run a script in it, and return what the script puts into `found`.

        Errors of the page, blocked resources and messages on its console fail the test.
        """
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable", session)
        self._call(
            "Emulation.setDeviceMetricsOverride", session,
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self._events.clear()
        self._call("Page.navigate", session, url=f"file://{page}{address}")
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read())
        answer = self._call(
            "Runtime.evaluate", session,
            expression=_ASK % script, awaitPromise=True, returnByValue=True,
        )  # fmt: skip
        self._call("Target.closeTarget", targetId=target)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        assert not [event for event in self._events if event["method"] in bad]
        found: dict[str, Any] = answer["result"]["value"]
        return found

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Return the result of a command; keep the events that come before it."""
        number = self._send(method, session, **params)
        while (message := self._read()).get("id") != number:
            self._events.append(message)
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    def _send(self, method: str, session: str | None = None, **params: Any) -> int:
        self._sent += 1
        command: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if session is not None:
            command["sessionId"] = session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        return self._sent

    def _read(self) -> dict[str, Any]:
        """Return the next answer or event."""
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], _SECONDS)
            part = os.read(self._in, 1 << 16) if ready else b""
            assert part, "the browser has ended or doesn't answer"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
