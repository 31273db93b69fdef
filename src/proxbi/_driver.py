"""What the host does around the compiled loop: rows, clocks, confirmations of convergence, and the result."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from proxbi import _check, _compile, _loop
from proxbi._cause import named
from proxbi._estimate import estimated
from proxbi._loop import Chunk, Goal
from proxbi._memory import memory_short
from proxbi.callbacks import AnyCallback, Callback
from proxbi.certificate import Bounds, Certificate
from proxbi.problem import Counts, Problem, in_blocks
from proxbi.result import HistoryRow, Result, Seconds, Snapshot, Status
from proxbi.rows import Rows
from proxbi.solvers import BLOCK, Fault, Info, OnBatches, Solver

_RTOL = 1e-6  # of the default solver, where no tolerance is given
_LEAST_RTOL = 1000  # and at least so many units of rounding: the certificate claims some tens for rounding alone
_MOST_RECHECKS = 3  # failed confirmations of convergence, after which rounding is what is in the way
_MAY_HAVE_CONVERGED = (Status.STEPS, Status.PRECISION, Status.NONSMOOTH)
"""Ends of runs that went no further: the certificate, which is more accurate than a step, may show that x is there."""
SLICE = 1.0  # seconds of steps between two looks at the clock and at Ctrl-C
MOST_CALLS = 2**31 - 1  # as many as 32 bits count


class Driver:
    """The state of a run and the operations on it."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver,
        key: PRNGKeyArray,
        snapshot: Snapshot,
        goal: Goal,
        bounds: Bounds | None,
    ):
        self.problem, self.solver, self.key = problem, solver, key
        dtype = jnp.result_type(*jax.tree.leaves(snapshot.state.y))
        self.snapshot, self.bounds = snapshot, bounds
        numbers: list[Any] = [np.asarray(a, dtype) for a in goal]
        self.goal = Goal(*numbers)
        self.compile_seconds = self.run_seconds = self.pace = 0.0
        self.rechecks = 0
        self.wasted = Counts()
        self.certificate: Certificate | None = None

    def close(self) -> None:
        """At the end of a run, however it ended."""

    def compile(self) -> None:
        """Zero steps through the compiled chunk: what it takes is the time to compile, nothing if that was done
        before. A program that does not fit into memory raises an error.
        """
        start = time.perf_counter()
        short = memory_short(_compiled, self._arguments(0, MOST_CALLS, self.snapshot.state))
        if self.problem.place.agreed([int(bool(short))])[0]:
            raise MemoryError(short or "another process of this run has too little memory, and says how much.")
        jax.block_until_ready(self._chunk(0, MOST_CALLS))
        self.compile_seconds = time.perf_counter() - start

    def chunk(self, every: int, steps: int) -> int:
        """The length of the next chunk. Chunks end at multiples of `every`, so that a resumed run has the same rows;
        the first is one step that evaluates x0: rtol and `Result.improved` refer to its row.
        """
        step = self.snapshot.step
        first = not self.snapshot.history and (self.solver.looks_ahead or self.goal.rtol > 0)
        return 1 if first else min(every - step % every, steps - step)

    def agreed(self, status: Status | None) -> Status | None:
        """The status that ends the run in all processes, if one of them has one."""
        statuses = list(Status)
        (number,) = self.problem.place.agreed([0 if status is None else 1 + statuses.index(status)])
        return statuses[number - 1] if number else None

    def advance(
        self, steps: int, callbacks: Sequence[AnyCallback], ended: Callable[[], Status | None]
    ) -> Status | None:
        """Up to `steps` steps, in slices, and the row that describes them; the status if the run ends with them."""
        limits = [c.most_calls for c in callbacks if isinstance(c, Callback) and c.most_calls is not None]
        calls = min(limits, default=MOST_CALLS)
        left, status, info = steps, None, None
        while left and status is None:
            start = time.perf_counter()
            part = 1 if self.pace == 0 else max(1, min(left, int(SLICE / self.pace)))
            (part,) = self.problem.place.agreed([part])  # clocks differ, and programs of several processes must not
            done = self._chunk(part, max(calls - int(self.snapshot.counts.total), 1))
            seconds, taken = time.perf_counter() - start, int(done.steps)
            self.run_seconds += seconds
            self.pace = seconds / max(taken, 1)
            self._take(done)
            info, left = done.info if taken else info, left - taken
            status = self._status(done)
            if taken < part or self.snapshot.counts.total >= calls or self._there(done):
                left = 0
            polled = (c.poll(self.run_seconds) for c in callbacks if isinstance(c, Callback))
            status = status or next((answer for answer in polled if answer), None)
            status = self.agreed(status or ended())
        if info is not None:
            self.snapshot.history.append(self._row(info))
        return status

    def _there(self, done: Chunk) -> bool:
        """Whether a solver that knows where it is has reached the goal: where slices end must not matter."""
        return self.solver.looks_ahead and bool(self.goal.reached(done.info))

    def _take(self, done: Chunk) -> None:
        counts = self.snapshot.counts + self._counted(done.counts)
        self.wasted = self.wasted + self._counted(done.wasted)
        step, history = self.snapshot.step + int(done.steps), list(self.snapshot.history)
        self.snapshot, self.certificate = Snapshot(step, done.state, counts, history), None

    def _status(self, done: Chunk) -> Status | None:
        if done.fault == Fault.NONE:
            return None
        fault = Fault(int(done.fault))
        start = self.snapshot.step == 0 and fault is Fault.DIVERGED
        return Status.NONFINITE_START if start else Status[fault.name]

    def near(self) -> bool:
        """Whether the last step found its x as stationary as was asked for."""
        return bool(self._goal().reached(_Reading(self.snapshot.history[-1])))

    def settle(self) -> Status | None:
        """Confirm convergence with a more accurate hypergradient. CONVERGED if x passes, PRECISION after too many
        failed checks, otherwise None, and the run continues from the refined state.
        """
        refined, certificate = self._certify()
        if self._goal().reached(certificate):
            return Status.CONVERGED
        counts = self.snapshot.counts + self._counted(certificate.counts)
        self.snapshot, self.certificate = self.snapshot._replace(counts=counts), certificate._replace(counts=Counts())
        if self.solver.looks_ahead:
            self.snapshot, self.certificate = self.snapshot._replace(state=refined), None
        self.rechecks += 1
        return Status.PRECISION if self.solver.looks_ahead and self.rechecks > _MOST_RECHECKS else None

    def result(self, status: Status) -> Result:
        """The result at the present state."""
        known = self.certificate or self._certify()[1]
        if status in _MAY_HAVE_CONVERGED and self._goal().reached(known):
            status = Status.CONVERGED
        upper, penalty = self.objective(known.y)
        return named(self.problem, self.solver, self._made(status, known, upper + penalty))

    def objective(self, y: PyTree) -> tuple[float, float]:
        """f and h at the present x and this y, on all rows."""
        upper, penalty = objective_of(in_blocks(self.problem, BLOCK), self.snapshot.state.x, y)
        return float(upper), float(penalty)

    def untouched(self, status: Status) -> Result:
        """The result of a run that did not begin."""
        nothing = jnp.asarray(jnp.inf)
        known = Certificate(nothing, nothing, None, nothing, None, self.snapshot.state.y, Counts())
        return self._made(status, known, float("inf"))

    def _made(self, status: Status, known: Certificate, objective: float) -> Result:
        def number(value: Any) -> float | None:
            return None if value is None else float(value)

        return Result(
            x=self.snapshot.state.x,
            y=known.y,
            status=status,
            objective=objective,
            stationarity=float(known.stationarity),
            lower_residual=float(known.lower_residual),
            linear_residual=number(known.linear_residual),
            history=self.snapshot.history,
            counts=self.snapshot.counts + self.wasted + self._counted(known.counts),
            seconds=Seconds(self.compile_seconds, self.run_seconds),
            state=self.snapshot,
            hypergradient_error=number(known.hypergradient_error),
            active_set_margin=float(known.active_set_margin),
            guaranteed=known.guaranteed,
            certificate_rows=int(known.rows),
            standard_error=float(known.standard_error),
        )

    def _counted(self, counts: Counts) -> Counts:
        """As Python integers, which do not overflow. Solvers on batches know their rows; others look at all."""
        calls: Counts = jax.tree.map(int, counts)
        return calls if isinstance(self.solver, OnBatches) else self.problem.with_rows(calls)

    def _certify(self) -> tuple[PyTree, Certificate]:
        """The certificate of the present x, with its counts, and the state it refined. The step it takes is that of
        the compiled chunk. Its calls are those of the run only if the run continues from it: a run that is resumed
        counts as if it had never stopped.
        """
        if isinstance(self.solver, OnBatches) and self.solver.certificate_rows is not None:
            return self._estimate(self.problem.data)
        start = time.perf_counter()
        before = self.solver.recheck(self.snapshot.state)
        done = self._chunk(1, MOST_CALLS, before)
        parts = certificate_of(self.problem, self.solver, before, done, numbers_of(self.bounds))
        numbers: Certificate = jax.device_get(parts._replace(y=None))
        certificate = numbers._replace(y=parts.y, guaranteed=self.guarantees())
        self.run_seconds += time.perf_counter() - start
        self.certificate = certificate
        return done.state, certificate

    def _estimate(self, rows: Rows) -> tuple[PyTree, Certificate]:
        """The certificate from some rows, or from all in blocks that come from the host."""
        start, solver = time.perf_counter(), self.solver
        assert isinstance(solver, OnBatches)
        self.certificate = estimated(self.problem, rows, solver, self.snapshot.state)
        self.run_seconds += time.perf_counter() - start
        return self.snapshot.state, self.certificate

    def guarantees(self) -> bool:
        return self.bounds is not None and self.solver.looks_ahead

    def _goal(self) -> Goal:
        """The tolerances; where a solver knows no scale of its own, rtol refers to the stationarity at the start."""
        history = self.snapshot.history
        if self.goal.rtol < 0 or not history or history[-1]["relative"] is not None:
            return self.goal
        return Goal(max(self.goal.tol, self.goal.rtol * history[0]["stationarity"]), -1.0)

    def _chunk(self, steps: int, calls: int, state: PyTree = None) -> Chunk:
        state = self.snapshot.state if state is None else state
        return on_host(_loop.advance(*self._arguments(steps, calls, state)))

    def _arguments(self, steps: int, calls: int, state: PyTree) -> tuple[Any, ...]:
        """What `advance` takes."""
        first, number, most = (np.int32(a) for a in (self.snapshot.step, steps, calls))
        return self.problem, self.solver, state, self.key, first, number, self.goal, most

    def _row(self, info: Info) -> HistoryRow:
        upper, penalty = self.objective(self.snapshot.state.y)
        row = {
            "step": self.snapshot.step,
            "objective": upper + penalty,
            "upper": upper,
            "regularizer": penalty,
            "stationarity": float(info.stationarity),
            "relative": None if np.isnan(info.relative) else float(info.relative),
            "lower_residual": float(info.lower_residual),
            "linear_residual": None if info.linear is None else float(info.linear.residual),
            **self.snapshot.counts.as_dict(),
            "seconds": self.run_seconds,
        }
        return cast(HistoryRow, row)  # mypy does not know the names of the counts; a test compares them


class _Reading:
    """A row, read as an `Info`."""

    def __init__(self, row: HistoryRow):
        self.stationarity = row["stationarity"]
        self.relative = float("nan") if row["relative"] is None else row["relative"]


def _compiled(*arguments: Any) -> Any:
    """The program that `_chunk` runs on large arrays."""
    return _loop.advance.thorough.lower(*arguments).compile()


def on_host(done: Chunk) -> Chunk:
    """The chunk, but for its state, as NumPy numbers: to look at a number of JAX compiles a program."""
    small: Chunk = jax.device_get(done._replace(state=None))
    return small._replace(state=done.state)


def numbers_of(bounds: Bounds | None) -> tuple[float, ...] | None:
    """What `certificate_of` takes: the same program serves all bounds."""
    return None if bounds is None else tuple(map(float, vars(bounds).values()))


@_compile.jit
def certificate_of(
    problem: Problem, solver: Solver, before: PyTree, done: Chunk, bounds: tuple[float, ...] | None
) -> Certificate:
    """What one step from `before` says about it. Whether it is guaranteed is not for a compiled program to say."""
    info = eqx.tree_at(lambda i: (i.counts, i.fault), done.info, (done.counts + done.wasted, done.fault))
    given = None if bounds is None else Bounds.of_traced(*bounds)
    return solver.certificate(problem, before, done.state, info, given)._replace(guaranteed=False)


@_compile.jit
def feasible(problem: Problem, x0: PyTree) -> Bool[Array, ""]:
    """Whether h(x0) is finite."""
    return jnp.isfinite(problem.regularizer.value(x0))


@_compile.jit
def objective_of(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    return problem.value_upper(x, y), problem.regularizer.value(x)


def goal_of(tol: float | None, rtol: float | None, default: bool, dtype: Any) -> Goal:
    """The tolerances; where none is given, those of the default solver in this dtype."""
    if default and tol is None and rtol is None:
        rtol = max(_RTOL, _LEAST_RTOL * float(jnp.finfo(dtype).eps))
    for name, value in (("tol", tol), ("rtol", rtol)):
        if value is not None:
            _check.positive(name, _check.as_float(value))
    return Goal(-1.0 if tol is None else float(tol), -1.0 if rtol is None else float(rtol))


@contextmanager
def ending(terminated: bool) -> Iterator[Callable[[], Status | None]]:
    """The status of a run that is asked to end: by Ctrl-C, and, if it is `terminated` by SIGTERM, by that."""
    with interruptible() as interrupted, noted(signal.SIGTERM) if terminated else nullcontext(lambda: False) as asked:

        def ended() -> Status | None:
            if asked():
                return Status.PREEMPTED
            return Status.INTERRUPTED if interrupted() else None

        yield ended


def interruptible() -> AbstractContextManager[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag."""
    return noted(signal.SIGINT)


@contextmanager
def noted(number: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Turn the first signal of this kind into a flag; the second one does what it did before."""
    previous = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield lambda: False  # signals go to the main thread only, and a background job (nohup) ignores this one
        return
    seen = []

    def on_signal(number: int, frame: Any) -> None:
        seen.append(True)
        signal.signal(number, previous)

    signal.signal(number, on_signal)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(number, previous)
