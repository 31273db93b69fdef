"""Where blocks are worked on: one after another in this process, or on the workers of a Dask cluster.

An engine is a function that takes what all blocks need, and the blocks, and gives their results in order. Dask works
on a block again if its worker dies; so the work on a block must have the same result each time, and whatever it writes
must be there whole or not at all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypeVar

EngineName = Literal["blocks", "dask"]
SECONDS = 30
"""To wait for a scheduler."""

H = TypeVar("H")
B = TypeVar("B")
R = TypeVar("R")


class Engine(Protocol):
    """Works on blocks; the results come in the order of the blocks."""

    def __call__(self, work: Callable[[H, B], R], held: H, blocks: Sequence[B]) -> Iterator[R]: ...


def in_process(work: Callable[[H, B], R], held: H, blocks: Sequence[B]) -> Iterator[R]:
    """One block after another.

    >>> list(in_process(lambda scale, block: scale * sum(block), 2, [(1, 2), (3, 4)]))
    [6, 14]
    """
    for block in blocks:
        yield work(held, block)


@contextmanager
def started(name: EngineName, scheduler: str | None = None, workers: int | None = None) -> Iterator[Engine]:
    """The engine; with "dask" on the cluster of this scheduler, or one of its own on this machine with so many worker
    processes.
    """
    if name == "blocks":
        yield in_process
        return
    require_dask()
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

        # As a result of a task, and not as scattered data: it is made again where the worker that has it dies.
        there = client.submit(_same, held, pure=False)
        futures = [client.submit(work, there, block, pure=False) for block in blocks]
        try:
            for block, future in zip(blocks, futures, strict=True):
                try:
                    yield future.result()
                except KilledWorker as error:
                    raise RuntimeError(
                        f"{block} cannot be worked on: one worker after another died while it did, most likely for "
                        "want of memory. Give workers more of it, or start fewer of them on each machine."
                    ) from error
        finally:
            client.cancel(futures)

    return run


def require_dask() -> None:
    """Say what is to be installed."""
    if find_spec("distributed") is None or find_spec("dask") is None:
        raise ImportError("the engine dask needs dask and distributed: pip install 'proxbi[dask]'.")


def _same(held: H) -> H:
    return held


def _connected(scheduler: str) -> Any:
    from distributed import Client

    try:
        return Client(scheduler, timeout=SECONDS)
    except (OSError, ValueError) as error:
        raise OSError(f"the scheduler {scheduler} does not answer: {error}.") from error
