"""Where rows come from and results go: files, standard input and output (`-`), pipes and devices.

Results are written whole or not at all: each as a draft beside its place, and when all are there, they are moved.
A file keeps its mode and owner, a symbolic link stays one, and what is no file (a pipe, a device) is written to.
"""

import contextlib
import errno
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

STANDARD = Path("-")
"""Standard input or output."""
DEVICES = Path("/dev")
ENDINGS = {b"PAR1": ".parquet", b"PK\x03\x04": ".npz"}
"""What a pipe brings, by its first bytes; all else is CSV (gzipped or not)."""
FORGOTTEN = 3600
"""Seconds after which the draft of a process that no longer runs was left by one that was killed."""
DRAFT = ".proxbi-"
ANY_RUN = "[0-9a-f]" * 32
"""A pattern for the name of a run of several processes: of `uuid4().hex`."""

Writer = Callable[[Path], object]
"""Writes a file to the path it is given."""


def called(path: Path, direction: str) -> str:
    """The path as messages call it."""
    return f"standard {direction}" if path == STANDARD else str(path)


def is_stream(path: Path) -> bool:
    """Whether this is no file that could be replaced: standard input or output, a pipe, a device."""
    if path == STANDARD:
        return True
    return path.exists() and not path.is_dir() and (not path.is_file() or DEVICES in path.absolute().parents)


def ending(path: Path) -> str:
    """The extension in lower case, with what is gzipped (`.csv.gz`); a stream without one is CSV."""
    last = path.suffix.lower()
    if last == ".gz":
        return "".join(path.suffixes[-2:]).lower()
    return last or (".csv" if is_stream(path) else "")


# --- Inputs -----------------------------------------------------------------------------------------------------------


def require_readable(path: Path) -> None:
    """Refuse a path that cannot be an input."""
    if path == STANDARD:
        return
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} may not be read.")
    if not is_stream(path) and path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")


def spooled(path: Path, folder: Path) -> Path:
    """A copy in `folder` of what a stream brings, which can be read only once."""
    with contextlib.nullcontext(sys.stdin.buffer) if path == STANDARD else path.open("rb") as source:
        start = source.read(4)
        if not start:
            raise ValueError(f"{called(path, 'input')} is empty.")
        copy = folder / f"input{ENDINGS.get(start, '.csv')}"
        with copy.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(source, file)
    return copy


# --- Outputs ----------------------------------------------------------------------------------------------------------


def require_writable(path: Path) -> None:
    """Refuse a path that cannot be an output, before any work is put at risk."""
    with _named(path):  # looking at a name that is too long is an error already
        if path.is_dir():
            raise ValueError(f"{path} is a directory; give the path of a file.")
        if path.exists() and not os.access(path, os.W_OK):  # a file that is protected is not replaced either
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if is_stream(path):
            return
        folder = path.resolve().parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass


def write_all(writers: Sequence[tuple[Path, Writer]], run: str = "") -> None:
    """Let each writer write its file, and put the files in place when all are there; if one fails, there is none.

    The drafts bear the name of a `run` of several processes, so that `remove_drafts` finds those that were killed.
    """
    drafts: list[_Draft] = []
    try:
        for path, write in writers:
            with _named(path):
                drafts.append(_Draft(path, run))
                drafts[-1].create()
                write(drafts[-1].path)
        for draft in (each for each in drafts if each.stream):
            draft.send()
        with _undisturbed():
            for draft in (each for each in drafts if not each.stream):
                draft.path.replace(draft.place)
    finally:
        for draft in drafts:
            draft.path.unlink(missing_ok=True)


class _Draft:
    """A file beside its place (that of a stream among temporary files)."""

    def __init__(self, path: Path, run: str = "") -> None:
        self.stream = is_stream(path)
        self.place = path if self.stream else path.resolve()
        folder = Path(tempfile.gettempdir()) if self.stream else self.place.parent
        # Writers go by the ending.
        self.path = folder / f"{DRAFT}{os.getpid()}-{time.monotonic_ns()}-{run}.tmp{ending(path)}"

    def create(self) -> None:
        """Make the file, which nobody can read who could not read the one it replaces."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_forgotten(self.path.parent)
        old = self.place.stat() if self.place.is_file() and not self.stream else None
        private = self.stream or old is not None
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666))
        if old is not None:
            with contextlib.suppress(PermissionError, AttributeError):  # only root gives files away, and not on Windows
                os.chown(self.path, old.st_uid, old.st_gid)
            self.path.chmod(stat.S_IMODE(old.st_mode))

    def send(self) -> None:
        """Write it into the stream."""
        with self.path.open("rb") as file:
            if self.place == STANDARD:
                sys.stdout.flush()
                shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                with _named(self.place), self.place.open("wb", buffering=0) as stream:
                    shutil.copyfileobj(file, stream)


def remove_drafts(folder: Path, run: str = ANY_RUN) -> None:
    """Remove what processes of this run left when they were killed, on this machine or another; when it has ended. Who
    has the folder alone may do so with what any run left.
    """
    for draft in folder.rglob(f"{DRAFT}*-{run}.tmp*"):
        draft.unlink(missing_ok=True)


def _remove_forgotten(folder: Path) -> None:
    """Remove drafts of processes that were killed while they wrote."""
    for draft in folder.glob(f"{DRAFT}*.tmp*"):
        with contextlib.suppress(OSError, ValueError):  # another process may remove it at the same time
            process = int(draft.name.removeprefix(DRAFT).split("-")[0])
            if time.time() - draft.stat().st_mtime > FORGOTTEN and not _is_running(process):
                draft.unlink()


def _is_running(process: int) -> bool:
    """Whether it is, or may be: only on POSIX can one ask without a signal being sent."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """The errors of the system, with the name of the output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"{called(path, 'output')} cannot be written: {error.strerror or error}.") from error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until all files are in place: they come before the first or after the last."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
