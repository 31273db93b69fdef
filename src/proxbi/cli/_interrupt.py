"""Ctrl-C and SIGTERM. Libraries may drop the exception or turn it into one of theirs, so that it is noted here that it
came.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, NamedTuple

INTERRUPTED = 130
"""The exit code that shells use: 128 and the number of the signal."""
RESUME_ME = 75
"""EX_TEMPFAIL, "try again": schedulers can be configured to queue such a command again."""


class End(NamedTuple):
    """How a command ends that was asked to."""

    code: int
    message: str


ENDS = {
    signal.SIGINT: End(INTERRUPTED, "interrupted."),
    signal.SIGTERM: End(RESUME_ME, "ended by SIGTERM: give the same command again; what it kept is not done again."),
}


class Watch:
    """Within it, `seen` tells whether a signal came that asks the command to end, and which."""

    def __init__(self) -> None:
        self.seen: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Watch":
        self.seen = None
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in ENDS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)

    @property
    def end(self) -> End:
        """How to end: as by Ctrl-C, if nothing else was noted."""
        return ENDS[self.seen or signal.SIGINT]

    def check(self) -> None:
        """Raise what was dropped."""
        if self.seen:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = signal.Signals(number)
        raise KeyboardInterrupt


watch = Watch()
"""That of the command line."""
