"""A real browser for tests: headless chromium, spoken to in the DevTools protocol through a pipe; needs no library."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]
PATIENCE = 60.0  # seconds for an answer


class Browser:
    """One tab. `events` are what it told since it was opened: requests, messages of the console, exceptions."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._buffer, self._last, self._session = commands, answers, b"", 0, None
        self.events: list[dict[str, Any]] = []

    def open(self, path: Path) -> None:
        """Load a page into a new tab, and listen to it from before its first byte."""
        target = self.call("Target.createTarget", session=False, url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", session=False, targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not self._said("Page.loadEventFired"):
            self._hear(self._read())

    def call(self, method: str, session: bool = True, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._last:
                self._hear(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"]["description"])
        return done["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses that the page asked for, itself included."""
        return [event["params"]["request"]["url"] for event in self._said("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        """What went to the console, and exceptions that nobody caught."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for kind in kinds for event in self._said(kind)]

    def _said(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["method"] == method]

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("sessionId") == self._session and "method" in message:
            self.events.append(message)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._answers, 1 << 16) if ready else b""
            if not piece:
                raise TimeoutError("The browser ended or does not answer.")
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in this folder. It reads commands from its descriptor 3 and answers on 4."""
    assert PROGRAM is not None
    ends = [end for pipe in (os.pipe(), os.pipe()) for end in pipe]
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends]  # out of the way of 3 and 4
    for end in ends:
        os.close(end)
    theirs_in, ours_out, ours_in, theirs_out = high
    start = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', PROGRAM]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [*start, *FLAGS, f"--user-data-dir={profile}"], pass_fds=(theirs_in, theirs_out), **quiet
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        browser = Browser(ours_out, ours_in)
        yield browser
        browser.call("Browser.close", session=False)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
