"""What the processes of a run tell one another, outside of compiled code: a few numbers now and then.

All of it goes through `jax.experimental.multihost_utils`, which every process must call in the same order.

Where a process dies, the sum that the others wait for breaks, and JAX raises what its transport says. The others cannot
go on without it; and at their own end JAX would wait for it, a minute and more, and abort. So `together` says in words
what happened, and the process ends without that wait. So does one that ends with an error of its own: the others would
wait for it as long.
"""

import atexit
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

_MESSAGE = 1024  # bytes of an error that other processes are told
AGAIN = 75  # EX_TEMPFAIL: start all of them again
# How transports (gloo on CPUs, NCCL on NVIDIA GPUs) and JAX's coordination service say that a peer is gone.
_BROKEN = ("gloo", "nccl", "coordination service", "connection reset", "connection closed", "socket closed")
_CODES: list[int] = []  # with which this process is to end, the first of them; empty as long as all is well


class RankLostError(RuntimeError):
    """Another process of the run ended, and this one cannot go on without it. At its end the process says 75, "start
    me again"; `resume=` of a folder with checkpoints then goes on from the last one.
    """


@contextmanager
def together() -> Iterator[None]:
    """Turn the error of a collective that broke into a `RankLostError`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # JAX raises both
        said = str(error)
        if isinstance(error, RankLostError) or not any(sign in said.lower() for sign in _BROKEN):
            raise
        _CODES.append(AGAIN)
        raise RankLostError(
            f"rank {jax.process_index()} of {jax.process_count()} lost another process of this run, which ended or "
            "cannot be reached: what it said last tells why. Start all processes again; with Checkpoint(folder) and "
            f"resume=folder the run goes on from its last checkpoint. ({said.splitlines()[0]})"
        ) from None


def leave_early() -> None:
    """From now on, end without waiting for the others where one was lost, or where this process ends with an error."""
    before = sys.excepthook

    def noted(*error: Any) -> None:
        before(*error)
        _CODES.append(1)

    sys.excepthook = noted
    atexit.register(_leave)  # called before what JAX registered: the last comes first


def _leave() -> None:
    if _CODES:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_CODES[0])


def first_nonzero(numbers: list[int]) -> list[int]:
    """For each number, that of the lowest rank where it is not 0; 0 if there is none."""
    table = gathered(np.asarray(numbers, np.int32))
    return [next((int(n) for n in column if n), 0) for column in table.T]


def gathered(numbers: np.ndarray) -> np.ndarray:
    """The arrays of all ranks, stacked."""
    if jax.process_count() == 1:
        return numbers[None]
    with together():
        return np.asarray(multihost_utils.process_allgather(numbers))


def require_alike(settings: dict[str, Any]) -> None:
    """Refuse settings in which ranks differ: all ranks raise the same error, which names the settings and the ranks."""
    digests = [hashlib.sha256(repr(value).encode()).digest()[:8] for value in settings.values()]
    table = gathered(np.frombuffer(b"".join(digests), np.uint32).reshape(len(digests), 2))
    found = [difference(name, table[:, k]) for k, name in enumerate(settings)]
    if told := [one for one in found if one]:
        raise ValueError(
            f"the processes of this run do not agree: {'; '.join(told)}. Start all of them with the same program, "
            "arguments and data."
        )


def difference(name: str, digests: np.ndarray) -> str:
    """Which ranks have something else than rank 0, in words; empty if none."""
    others = np.flatnonzero((digests != digests[0]).any(axis=1))
    if not len(others):
        return ""
    return f"{name} differs on rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} from that on rank 0"


def by_first(action: Callable[[], None]) -> None:
    """Rank 0 does it; if it fails, all ranks raise: the others would wait for it for ever."""
    error: Exception | None = None
    if jax.process_index() == 0:
        try:
            action()
        except Exception as caught:
            error = caught
    kind = 0 if error is None else 1 if isinstance(error, OSError) else 2
    message = np.zeros(1 + _MESSAGE, np.uint8)
    text = np.frombuffer(f"{kind}{error or ''}".encode()[: len(message)], np.uint8)
    message[: len(text)] = text
    told = bytes(gathered(message)[0]).rstrip(b"\0").decode(errors="replace")
    if error is not None:
        raise error
    if told[0] != "0":
        raise (OSError if told[0] == "1" else RuntimeError)(f"rank 0: {told[1:]}")
