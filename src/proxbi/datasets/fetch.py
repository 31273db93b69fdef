"""Downloading a file whose size and SHA-256 are known: resumed where it was cut, and renamed only once it is right."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from io import BufferedRandom
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

_BLOCK = 2**16
_TIMEOUT = 30.0  # seconds without a byte


class RemoteFile(NamedTuple):
    """A file as its mirrors must serve it."""

    name: str
    size: int
    sha256: str


class DownloadError(OSError):
    """No mirror gave the file; the message says what each of them did, or what the user can do."""


class _Refused(OSError):
    """The bytes received are neither the file nor its beginning: nothing of them is kept."""


def fetch(file: RemoteFile, mirrors: Sequence[str], folder: Path) -> Path:
    """Download `file` into `folder` from the first of `mirrors` (addresses of directories, ending in /) that has it.

    Resumes from `NAME.part` if present. If several processes want the same file, one downloads it and the others wait.
    """
    target, partial = folder / file.name, folder / f"{file.name}.part"
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(str(error)) from error
    with _turn(folder):
        if target.is_file():  # another process was first
            return target
        for mirror in mirrors:
            try:
                _download(mirror + file.name, file, partial)
                partial.replace(target)
                return target
            except (OSError, HTTPException) as error:
                failures.append(f"{mirror}{file.name}: {_reason(error)}")
    raise DownloadError("; ".join(failures))


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait while another process downloads into `folder`; its lock ends with it, however it ends."""
    if sys.platform == "win32":  # there a file that one process has open cannot be renamed by another
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot lock a folder: then two may do the work of one
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download(url: str, file: RemoteFile, partial: Path) -> None:
    """Make `partial` the whole file, checked."""
    partial.touch()
    resumed = partial.stat().st_size > 0
    try:
        with partial.open("r+b") as stream:
            _receive(url, file, stream)
            _verify(file, stream)
    except _Refused:
        partial.unlink(missing_ok=True)
        if not resumed:
            raise
        _download(url, file, partial)  # perhaps only the old part was bad


def _receive(url: str, file: RemoteFile, stream: BufferedRandom) -> None:
    """Bring `stream` to its full size, keeping what is there already if the server can continue from it."""
    there = stream.seek(0, os.SEEK_END)
    if there > file.size:
        raise _Refused(f"the part that was there has more than {file.size} bytes")
    if there == file.size:
        return
    with _open(url, there) as response, _progress(file) as show:
        at = stream.seek(_first_byte(response, there))
        while block := response.read(min(_BLOCK, file.size + 1 - at)):
            at += len(block)
            if at > file.size:
                raise _Refused(f"it has more than {file.size} bytes")
            stream.write(block)
            show(at)
    if at < file.size:
        raise OSError(f"the transfer ended after {at} of {file.size} bytes")


def _open(url: str, first: int) -> HTTPResponse:
    headers = {"User-Agent": "proxbi"} | ({"Range": f"bytes={first}-"} if first else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
        return response
    except HTTPError as error:
        error.close()
        if error.code == 416:  # Range Not Satisfiable
            raise _Refused(str(error)) from error
        raise


def _first_byte(response: HTTPResponse, asked: int) -> int:
    """The place in the file of the first byte of `response`: a server may not know ranges and send all of it."""
    if response.status != 206:
        return 0
    sent = response.headers.get("Content-Range", "")
    if not sent.startswith(f"bytes {asked}-"):
        raise _Refused(f"asked to continue from byte {asked}, it sent {sent or 'an unnamed range'}")
    return asked


def _verify(file: RemoteFile, stream: BufferedRandom) -> None:
    stream.flush()
    os.fsync(stream.fileno())  # the new name must not reach the disk before the bytes do
    stream.seek(0)
    found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise _Refused(f"its SHA-256 is {found}, not {file.sha256}")


def _reason(error: Exception) -> object:
    return error.reason if type(error) is URLError else error


@contextmanager
def _progress(file: RemoteFile) -> Iterator[Callable[[int], None]]:
    """A function to tell how many bytes are there; it moves a bar where there is a terminal and rich to draw it."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        yield lambda there: None
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(file.name, total=file.size)
        yield lambda there: bar.update(task, completed=there)
