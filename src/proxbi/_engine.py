"""Where pieces of work are done: one after another in this process, in processes of this machine (joblib), or on the
workers of a Dask cluster.

An engine is a function that takes what all pieces need, and the pieces, and gives their results in order. Dask does a
piece again if its worker dies; so a piece must have the same result each time, and whatever it writes must be there
whole or not at all.
"""

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from proxbi import _check

EngineName = Literal["here", "joblib", "dask"]
SECONDS = 30
"""To wait for a scheduler."""

H = TypeVar("H")
B = TypeVar("B")
R = TypeVar("R")


@runtime_checkable
class Engine(Protocol):
    """Does pieces of work; the results come in the order of the pieces."""

    def __call__(self, work: Callable[[H, B], R], held: H, blocks: Sequence[B]) -> Iterator[R]: ...


def in_process(work: Callable[[H, B], R], held: H, blocks: Sequence[B]) -> Iterator[R]:
    """One piece after another.

    >>> list(in_process(lambda scale, block: scale * sum(block), 2, [(1, 2), (3, 4)]))
    [6, 14]
    """
    for block in blocks:
        yield work(held, block)


@contextmanager
def started(name: EngineName, scheduler: str | None = None, workers: int | None = None) -> Iterator[Engine]:
    """The engine; with "joblib" in so many processes, with "dask" on the cluster of this scheduler, or one of its own
    on this machine with so many worker processes.
    """
    if workers is not None:
        _check.positive_int("workers", workers)
    if name == "here":
        yield in_process
        return
    _require(name)
    if name == "joblib":
        yield _in_processes(workers)
        return
    from distributed import Client, LocalCluster

    if scheduler is not None:
        with _connected(scheduler) as client:
            yield on(client)
        return
    # One thread each: JAX has threads of its own. Processes are spawned, as JAX needs it.
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield on(client)


def on(client: Any) -> Engine:
    """The workers of a Dask client."""

    def run(work: Callable[[H, B], R], held: H, blocks: Sequence[B]) -> Iterator[R]:
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        # As a result of a task, and not as scattered data: it is made again where the worker that has it dies.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # it is sent once, whatever its size
            there = client.submit(_same, held, pure=False)
        futures = [client.submit(work, there, block, pure=False) for block in blocks]
        try:
            for block, future in zip(blocks, futures, strict=True):
                try:
                    found = future.result()
                except KilledWorker as error:
                    raise OSError(
                        f"{block} cannot be worked on: one worker after another died while it did, most likely for "
                        "want of memory. Give workers more of it, or start fewer of them on each machine."
                    ) from error
                except (CancelledError, CommClosedError) as error:
                    raise OSError("the Dask scheduler was lost: start it again, and then give this again.") from error
                future.release()  # or workers would keep all results until the last one
                yield found
        finally:
            if client.status == "running":
                client.cancel(futures)

    return run


def _in_processes(workers: int | None) -> Engine:
    """Of joblib, which are spawned, as JAX needs it."""

    def run(work: Callable[[H, B], R], held: H, blocks: Sequence[B]) -> Iterator[R]:
        from joblib import Parallel, delayed

        jobs = (delayed(work)(held, block) for block in blocks)
        try:
            yield from Parallel(n_jobs=workers or -1, return_as="generator")(jobs)
        except BrokenProcessPool as error:
            raise OSError(
                "a worker process died, most likely for want of memory: start fewer of them, or give them less to do."
            ) from error

    return run


class Packed(NamedTuple):
    """Anything, functions and JAX's arrays included, as bytes for another process. They are not read before JAX has the
    precision that it has here: it would round what is read.
    """

    content: bytes
    x64: bool
    name: str
    """How messages call it."""

    def __str__(self) -> str:
        return self.name


def packed(*values: Any, name: str) -> Packed:
    """These, for another process."""
    import cloudpickle
    import jax

    try:
        content = cloudpickle.dumps(values)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{name} cannot be sent to other processes: {error}. Functions must not use locks, open files or "
            'generators from outside; engine="loop" needs no other process.'
        ) from error
    return Packed(content, bool(jax.config.values["jax_enable_x64"]), name)


def unpacked(given: Packed) -> Any:
    """What was packed, in the process that it was sent to."""
    import jax

    if jax.config.values["jax_enable_x64"] != given.x64:
        jax.config.update("jax_enable_x64", given.x64)
    return pickle.loads(given.content)


def _require(name: EngineName) -> None:
    """Say what is to be installed."""
    needed = ("cloudpickle", "joblib") if name == "joblib" else ("cloudpickle", "dask", "distributed")
    if lacking := [each for each in needed if find_spec(each) is None]:
        raise ImportError(f"the engine {name} needs {', '.join(lacking)}: pip install 'proxbi[dask]'.")


def _same(held: H) -> H:
    return held


def _connected(scheduler: str) -> Any:
    from distributed import Client

    try:
        return Client(scheduler, timeout=SECONDS)
    except (OSError, ValueError) as error:
        raise OSError(f"the scheduler {scheduler} does not answer: {error}.") from error
