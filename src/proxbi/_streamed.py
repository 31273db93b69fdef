"""Runs whose rows are on the host: each step is sent its batch, and meanwhile the next one is read."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from proxbi import _compile, _loop
from proxbi._driver import Driver, objective_of, on_host
from proxbi._loop import Chunk, Goal
from proxbi.certificate import Bounds, Certificate
from proxbi.problem import Counts, Problem, on_batches
from proxbi.result import Snapshot
from proxbi.rows import Batch, IterableRows, Rows, seed_of
from proxbi.rows._batches import LEVELS, Level
from proxbi.solvers import BLOCK, Fault, OnBatches, Solver
from proxbi.solvers.stochastic import Draws, Linear
from proxbi.solvers.stochastic._scale import sample_index


def rows_flow(problem: Any) -> bool:
    """Whether rows of the problem are on the host."""
    return isinstance(problem, Problem) and isinstance(problem.data, Rows) and problem.data.on_host


def on_sample(problem: Problem, solver: Solver) -> Problem:
    """The problem on the few batches that steps are learned from: what is checked and compiled before rows flow."""
    rows = problem.data
    assert isinstance(solver, OnBatches), "others read all rows: `_hosted`"
    if solver.reads_all_rows:
        raise TypeError(
            f"data: its rows are on the host, and {type(solver).__name__} needs more of them than a batch: take "
            "ProxSOBA() or ProxF2SA(), or give arrays."
        )
    return on_batches(problem, **{level: rows.batch(level, _sample(solver, rows, level)) for level in LEVELS})


def _sample(solver: OnBatches, rows: Rows, level: Level) -> Any:
    return None if isinstance(getattr(rows, level), IterableRows) else sample_index(solver, rows, level)


class Feed:
    """Batches by number; while one is used, a thread reads the next."""

    def __init__(self, rows: Rows, solver: OnBatches, seed: Array):
        self.rows, self.solver, self.seed = rows, solver, seed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="proxbi-rows")
        self._ahead: dict[int, Future[dict[str, Batch]]] = {}

    def __call__(self, number: int) -> dict[str, Batch]:
        """Batch `number` of each level."""
        # This one is kept until the next is asked for: the first is used twice, to compile and to run.
        wanted = (number, number + 1)
        self._ahead = {k: self._ahead.get(k) or self._thread.submit(self._read, k) for k in wanted}
        return self._ahead[number].result()

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _read(self, number: int) -> dict[str, Batch]:
        return {level: self.rows.batch(level, self._index(level, number)) for level in LEVELS}

    def _index(self, level: Level, number: int) -> Any:
        if isinstance(getattr(self.rows, level), IterableRows):
            return None
        sampling = self.solver.rows_of(self.rows, level)
        return np.asarray(_index_of(sampling, self.solver.level_seed(level, self.seed), np.int32(number)))


@_compile.jit
def _index_of(sampling: Any, seed: Array, number: Any) -> Array:
    return sampling.index(seed, number)


class Streamed(Driver):
    """`Driver`, for rows on the host."""

    def __init__(
        self,
        problem: Problem,
        rows: Rows,
        solver: Any,
        key: PRNGKeyArray,
        snapshot: Snapshot,
        goal: Goal,
        bounds: Bounds | None,
    ):
        super().__init__(problem, solver, key, snapshot, goal, bounds)
        self.sample, self.rows = problem, rows
        draws: Draws = snapshot.state.draws
        seed = draws.seed if int(draws.number) else seed_of(jax.random.fold_in(key, 0))
        self.feed = Feed(rows, solver, seed)
        self._row_by_sample = True

    def close(self) -> None:
        self.feed.close()

    def _chunk(self, steps: int, calls: int, state: PyTree = None) -> Chunk:
        """Step by step, each with its batch. Zero steps compile the program of one.

        What lies between two steps is seen by nobody, so that each takes the memory of the one before; the state of
        the snapshot, which callbacks and an interrupt may ask for, is copied once.
        """
        state = jax.tree.map(jnp.copy, self.snapshot.state if state is None else state)
        first = self.snapshot.step
        total: Chunk | None = None
        for number in range(max(steps, 1)):
            problem = on_batches(self.problem, **self.feed(first + number))
            numbers: list[Any] = [np.int32(a) for a in (first + number, min(steps, 1), calls)]
            start, one, most = numbers
            done = on_host(_loop.advance_in_place(problem, self.solver, state, self.key, start, one, self.goal, most))
            total, state = done if total is None else _together(total, done), done.state
            if done.fault != Fault.NONE or total.counts.total >= calls:
                break
        assert total is not None  # there was at least one round
        return total

    def objective(self, y: PyTree) -> tuple[float, float]:
        """During the run on the batches that steps were learned from; at the end on all rows."""
        x = self.snapshot.state.x
        if self._row_by_sample or isinstance(self.rows.upper, IterableRows):
            upper, penalty = objective_of(self.sample, x, y)
            return float(upper), float(penalty)
        count, total, penalty = len(self.rows.upper), 0.0, jnp.zeros(())
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            part = on_batches(self.sample, upper=self.rows.block("upper", start, stop))
            upper, penalty = objective_of(part, x, y)
            total += float(upper) * (stop - start) / count
        return total, float(penalty)

    def result(self, status: Any) -> Any:
        self._row_by_sample = False
        return super().result(status)

    def _certify(self) -> tuple[PyTree, Certificate]:
        streams = any(isinstance(getattr(self.rows, level), IterableRows) for level in LEVELS)
        if isinstance(self.solver, Linear) and not streams:
            return self._estimate(self.rows)
        state, certificate = super()._certify()  # on the batches that steps were learned from
        self.certificate = certificate._replace(rows=max(self.sample.row_numbers()))
        return state, self.certificate


def _together(before: Chunk, after: Chunk) -> Chunk:
    """Two pieces of a run as one."""
    counts: Counts = before.counts + after.counts
    taken = after.fault == Fault.NONE
    info = after.info if taken else before.info
    return Chunk(after.state, before.steps + after.steps, after.fault, counts, before.wasted + after.wasted, info)
