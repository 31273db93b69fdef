"""Downloading a file whose SHA-256 is known from the first mirror that has it. pooch does the work: it renames a file
only once it is complete and right. Here are the mirrors, the progress bar and messages of one sentence.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_TIMEOUT = 30.0  # seconds without a byte


class RemoteFile(NamedTuple):
    """A file as its mirrors must serve it."""

    name: str
    size: int
    sha256: str


class DownloadError(OSError):
    """No mirror gave the file. The message lists what each of them did, or what the user can do."""


def fetch(file: RemoteFile, mirrors: Sequence[str], folder: Path) -> Path:
    """Download `file` into `folder` from the first of `mirrors` (addresses of directories, ending in /) that has it."""
    try:
        import pooch
    except ImportError as error:
        raise DownloadError("downloading needs pooch: pip install 'proxbi[data]'") from error
    pooch.get_logger().setLevel(logging.WARNING)  # it reports every download; there is a bar
    failures = []
    for mirror in mirrors:
        try:
            with _progress(file) as bar:
                download = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
                return Path(
                    pooch.retrieve(mirror + file.name, f"sha256:{file.sha256}", file.name, folder, downloader=download)
                )
        except (OSError, ValueError) as error:
            failures.append(f"{mirror}{file.name}: {_reason(error)}")
    raise DownloadError("; ".join(failures))


def _reason(error: Exception) -> object:
    """What went wrong, without what pooch, requests and urllib3 wrap around it."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.RequestException):
        return "no connection, or it broke off"
    return "its SHA-256 is not that of the file" if isinstance(error, ValueError) else error


class _Bar:
    """What pooch expects of a progress bar, drawn by rich."""

    def __init__(self, progress: Any, file: RemoteFile):
        self.progress, self.task = progress, progress.add_task(file.name, total=file.size)
        self.total = file.size

    def update(self, size: int) -> None:
        self.progress.advance(self.task, size)

    def reset(self) -> None:  # pooch does so at the end, and fills the bar
        self.progress.reset(self.task, total=self.total)

    def close(self) -> None:
        """The bar closes with the block it is used in."""


@contextmanager
def _progress(file: RemoteFile) -> Iterator[Any]:
    """A progress bar where there is a terminal and rich to draw it; otherwise False."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        yield False
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as shown:
        yield _Bar(shown, file)
