"""A folder for one run at a time. The lock is the kernel's, so that it ends with its process, however that ends."""

import os
import socket
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks, and nothing is refused there
    LOCKS = False
else:
    LOCKS = True

NAME = ".lock"


class Locked(OSError):
    """The directory is in use."""


class Lock:
    """Held from here to `release`; `Locked` if another run holds it, which the file names."""

    def __init__(self, folder: Path):
        """Take the lock of `folder`, which must be there."""
        self.path, self._file = folder / NAME, -1
        while LOCKS and not self._taken():
            pass

    def release(self) -> None:
        """Let others have it."""
        if self._file >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _taken(self) -> bool:
        """Whether the lock is ours; False where the file was removed while we took it, by whoever held it before."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 200).decode(errors="replace").strip() or "another run"
            os.close(file)
            raise Locked(f"folder {str(self.path.parent)!r} is in use by {holder}: choose another one.") from None
        except OSError:  # a file system without locks: nobody can be kept out
            os.close(file)
            return True
        if not self.path.exists() or os.fstat(file).st_ino != self.path.stat().st_ino:
            os.close(file)
            return False
        self._file = file
        with suppress(OSError):  # a full disk: the lock holds, and only does not say whose it is
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        return True
