"""Ctrl-C. Libraries may drop the exception or turn it into one of theirs, so that it is noted here that it came."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

INTERRUPTED = 130
"""The exit code that shells use: 128 and the number of the signal."""


class Watch:
    """Within it, `seen` tells whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> "Watch":
        self.seen = False
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise what was dropped."""
        if self.seen:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


watch = Watch()
"""That of the command line."""
