"""`minimize`: the loop that users call.

The compiled unit is a chunk of up to `every` steps. Everything else (metrics, progress, checkpoints, stopping) happens
in Python between chunks, with the clock stopped. Inside a chunk an error is data: the loop ends at the last finite
state and reports why. A chunk whose steps are slow is cut into slices of about a second, so that Ctrl-C and time
limits act soon; where the cuts are changes no number.
"""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from proxbi import _check, _compile, _loop, checkpoint
from proxbi._loop import Goal
from proxbi._validate import checked
from proxbi.callbacks import AnyCallback, Callback, Progress, Run
from proxbi.certificate import Bounds, Certificate
from proxbi.problem import Counts, Problem
from proxbi.result import Result, Seconds, Snapshot, SolveError, Status
from proxbi.solvers import AdaptiveProxBiO, Fault, Info, Solver

_RTOL = 1e-6  # of the default solver, where no tolerance is given
_LEAST_RTOL = 1000  # and at least so many units of rounding: the certificate claims some tens for rounding alone
_SLICE = 1.0  # seconds of steps between two looks at the clock and at Ctrl-C
_MOST_RECHECKS = 3  # failed confirmations of convergence, after which rounding is what is in the way
_MOST_CALLS = 2**31 - 1  # as many as 32 bits count


def minimize(
    problem: Problem,
    x0: PyTree = None,
    y0: PyTree = None,
    solver: Solver | None = None,
    *,
    steps: int = 1000,
    tol: float | None = None,
    rtol: float | None = None,
    bounds: Bounds | None = None,
    every: int = 10,
    callbacks: Sequence[AnyCallback] = (),
    progress: bool = False,
    resume: Result | Snapshot | str | PathLike[str] | None = None,
    throw: bool = True,
    key: PRNGKeyArray | None = None,
) -> Result:
    """Minimise f(x, y*(x)) + h(x) over x.

    **Arguments:**

    - `problem`: what to solve.
    - `x0`, `y0`: where to start, any pytrees of finite floating point arrays of one dtype. Not needed with a `resume`
      that holds them.
    - `solver`: how; by default `AdaptiveProxBiO()`, which has nothing to set.
    - `steps`: the most outer steps in all, those of a resumed run included.
    - `tol`: stop once the stationarity, an estimate of dist(0, d(Phi + h)(x)), is at most this.
    - `rtol`: or once it is at most this times the gradient that the curvature of Phi near x builds up over the way from
      x0 to x: the rule does not change with units, with constants added to f, or with how steep f is at x0. (The
      default solver asks the same of the decrease that is still to be had.) 1e-6 in float64 and 1e-4 in float32 if
      neither a solver nor `tol` is given.
    - `bounds`: constants of the problem, for guaranteed bounds instead of estimates in the result.
    - `every`: the length of a chunk: metrics, callbacks and stopping tests happen every so many steps (and after the
      first one, where the default solver looks at x0, or `rtol` refers to it).
    - `callbacks`: see `proxbi.callbacks`.
    - `progress`: True shows a progress bar on the terminal.
    - `resume`: a `Result`, its `.state`, or a checkpoint file or folder to go on from. A folder without checkpoints
      starts afresh, so that one script serves the first run and every restart. The run goes on bit for bit as if it
      had never stopped.
    - `throw`: raise `SolveError` where the run broke down before it found a point better than x0, and warn where it
      broke down later and returns the best point. False does neither: the last finite iterate and the status come back.
    - `key`: for stochastic solvers; step k gets `fold_in(key, k)`.

    Ctrl-C stops within about a second of the current step and returns what was reached; a second one raises.

    **Returns:** a `Result`: `.x`, `.y`, `.converged`, `.objective`, `.stationarity`, `.status`, `.history`, ...

    >>> from proxbi import L1, Problem
    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(1.0))
    >>> result = minimize(problem, jnp.zeros(2), jnp.zeros(2))
    >>> print(result.x.round(3), result.status.name)
    [1.5 1.5] CONVERGED
    """
    _check.positive_int("steps", steps)
    _check.positive_int("every", every)
    x0, y0 = _starts(problem, x0, y0, resume)
    if bounds is not None and not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a proxbi Bounds such as Bounds(mu=0.1, cross=1.0), got {bounds!r}.")
    default = solver is None
    solver = AdaptiveProxBiO() if solver is None else solver
    callbacks = _with_bar(callbacks, progress)
    problem, x0, y0, first = checked(problem, solver, x0, y0)
    goal = _goal(tol, rtol, default, jax.tree.leaves(x0)[0].dtype)
    snapshot = _first_snapshot(problem, solver, first, resume)
    loop = _Run(problem, solver, jax.random.key(0) if key is None else key, snapshot, goal, bounds)
    if snapshot.step == 0 and solver.looks_ahead and not _feasible(problem, x0):
        return _returned(loop.untouched(Status.INFEASIBLE_START), throw)

    with _interruptible() as interrupted, ExitStack() as stack:
        _open_callbacks(callbacks, Run(problem, solver, steps, snapshot.step), stack, loop)
        loop.compile()
        status: Status | None = None
        while status is None and loop.snapshot.step < steps:
            rows = len(loop.snapshot.history)
            status = loop.advance(loop.chunk(every, steps), callbacks, interrupted)
            for row in loop.snapshot.history[rows:]:
                asked = [callback(row, loop.snapshot) for callback in callbacks]
                status = status or next((a if isinstance(a, Status) else Status.STOPPED for a in asked if a), None)
            status = status or (Status.INTERRUPTED if interrupted() else None)
            if status is None and loop.near():
                status = loop.settle()
        result = loop.result(status or Status.STEPS)
    return _returned(result, throw)


def _returned(result: Result, throw: bool) -> Result:
    """The result, unless it is none: raise where the run found nothing better than x0, warn where it did."""
    if not throw:
        return result
    if result.status.failed and not result.improved:
        raise SolveError(result)
    if result.status.failed or result.status is Status.FLAT_START:
        warnings.warn(f"{result.status.name}: {result.status.value}", stacklevel=3)
    return result


class _Run:
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
        self.snapshot, self.goal, self.bounds = snapshot, goal, bounds
        self.compile_seconds = self.run_seconds = self.pace = 0.0
        self.rechecks = 0
        self.wasted = Counts()
        self.certificate: Certificate | None = None

    def compile(self) -> None:
        """Zero steps through the compiled chunk: what it takes is the time to compile, nothing if that was done
        before.
        """
        start = time.perf_counter()
        jax.block_until_ready(self._chunk(0, _MOST_CALLS))
        self.compile_seconds = time.perf_counter() - start

    def chunk(self, every: int, steps: int) -> int:
        """The length of the next chunk. Chunks end at multiples of `every`, so that a resumed run has the same rows;
        the first is one step where x0 is looked at: rtol and `Result.improved` refer to its row.
        """
        step = self.snapshot.step
        first = not self.snapshot.history and (self.solver.looks_ahead or self.goal.rtol > 0)
        return 1 if first else min(every - step % every, steps - step)

    def advance(self, steps: int, callbacks: Sequence[AnyCallback], interrupted: Callable[[], bool]) -> Status | None:
        """Up to `steps` steps, in slices, and the row that describes them; the status if the run ends with them."""
        limits = [c.most_calls for c in callbacks if isinstance(c, Callback) and c.most_calls is not None]
        calls = min(limits, default=_MOST_CALLS)
        left, status, info = steps, None, None
        while left and status is None:
            start = time.perf_counter()
            part = 1 if self.pace == 0 else max(1, min(left, int(_SLICE / self.pace)))
            done = jax.block_until_ready(self._chunk(part, max(calls - int(self.snapshot.counts.total), 1)))
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
            status = status or (Status.INTERRUPTED if interrupted() else None)
        if info is not None:
            self.snapshot.history.append(self._row(info))
        return status

    def _there(self, done: _loop.Chunk) -> bool:
        """Whether a solver that knows where it is has reached the goal: where slices end must not matter."""
        return self.solver.looks_ahead and bool(self.goal.reached(done.info))

    def _take(self, done: _loop.Chunk) -> None:
        counts = self.snapshot.counts + jax.tree.map(int, done.counts)
        self.wasted = self.wasted + jax.tree.map(int, done.wasted)
        step, history = self.snapshot.step + int(done.steps), list(self.snapshot.history)
        self.snapshot, self.certificate = Snapshot(step, done.state, counts, history), None

    def _status(self, done: _loop.Chunk) -> Status | None:
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
        failed checks, otherwise None, and the run goes on from the refined state.
        """
        refined, certificate = self._certify()
        if self._goal().reached(certificate):
            return Status.CONVERGED
        counts = self.snapshot.counts + jax.tree.map(int, certificate.counts)
        self.snapshot, self.certificate = self.snapshot._replace(counts=counts), certificate._replace(counts=Counts())
        if self.solver.looks_ahead:
            self.snapshot, self.certificate = self.snapshot._replace(state=refined), None
        self.rechecks += 1
        return Status.PRECISION if self.solver.looks_ahead and self.rechecks > _MOST_RECHECKS else None

    def result(self, status: Status) -> Result:
        """The result at the present state."""
        known = self.certificate or self._certify()[1]
        if status is Status.STEPS and self._goal().reached(known):
            status = Status.CONVERGED
        upper, penalty = map(float, _objective(self.problem, self.snapshot.state.x, known.y))
        return self._made(status, known, upper + penalty)

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
            counts=self.snapshot.counts + self.wasted + jax.tree.map(int, known.counts),
            seconds=Seconds(self.compile_seconds, self.run_seconds),
            state=self.snapshot,
            hypergradient_error=number(known.hypergradient_error),
            guaranteed=known.guaranteed,
        )

    def _certify(self) -> tuple[PyTree, Certificate]:
        """The certificate of the present x, with its counts, and the state it refined. The step it takes is that of
        the compiled chunk. Its calls are those of the run only where the run goes on from it: a run that is resumed
        counts as if it had never stopped.
        """
        numbers = None if self.bounds is None else tuple(map(float, vars(self.bounds).values()))
        start = time.perf_counter()
        before = self.solver.recheck(self.snapshot.state)
        done = self._chunk(1, _MOST_CALLS, before)
        info = eqx.tree_at(lambda i: (i.counts, i.fault), done.info, (done.counts + done.wasted, done.fault))
        parts = _certificate(self.problem, self.solver, before, done.state, info, numbers)
        certificate = jax.block_until_ready(parts)._replace(guaranteed=self._guarantees())
        self.run_seconds += time.perf_counter() - start
        self.certificate = certificate
        return done.state, certificate

    def _guarantees(self) -> bool:
        return self.bounds is not None and self.solver.looks_ahead

    def _goal(self) -> Goal:
        """The tolerances; where a solver knows no scale of its own, rtol refers to the stationarity at the start."""
        history = self.snapshot.history
        if self.goal.rtol < 0 or not history or history[-1]["relative"] is not None:
            return self.goal
        return Goal(max(self.goal.tol, self.goal.rtol * history[0]["stationarity"]), -1.0)

    def _chunk(self, steps: int, calls: int, state: PyTree = None) -> _loop.Chunk:
        first, number, most = (jnp.int32(a) for a in (self.snapshot.step, steps, calls))
        goal = Goal(*(jnp.asarray(a, float) for a in self.goal))
        state = self.snapshot.state if state is None else state
        return _loop.advance(self.problem, self.solver, state, self.key, first, number, goal, most)

    def _row(self, info: Info) -> dict[str, Any]:
        state = self.snapshot.state
        upper, penalty = map(float, _objective(self.problem, state.x, state.y))
        return {
            "step": self.snapshot.step,
            "objective": upper + penalty,
            "upper": upper,
            "regularizer": penalty,
            "stationarity": float(info.stationarity),
            "relative": None if jnp.isnan(info.relative) else float(info.relative),
            "lower_residual": float(info.lower_residual),
            "linear_residual": None if info.linear is None else float(info.linear.residual),
            **self.snapshot.counts.as_dict(),
            "seconds": self.run_seconds,
        }


class _Reading:
    """A row, read as an `Info`."""

    def __init__(self, row: dict[str, Any]):
        self.stationarity = row["stationarity"]
        self.relative = float("nan") if row["relative"] is None else row["relative"]


@_compile.jit
def _certificate(
    problem: Problem, solver: Solver, before: PyTree, after: PyTree, info: Info, bounds: tuple[float, ...] | None
) -> Certificate:
    given = None if bounds is None else Bounds.of_traced(*bounds)
    return solver.certificate(problem, before, after, info, given)._replace(guaranteed=False)


@jax.jit
def _objective(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    return problem.value_upper(x, y), problem.regularizer.value(x)


def _feasible(problem: Problem, x0: PyTree) -> bool:
    return bool(jnp.isfinite(problem.regularizer.value(x0)))


def _goal(tol: float | None, rtol: float | None, default: bool, dtype: Any = jnp.float64) -> Goal:
    """The tolerances; where none is given, those of the default solver in this dtype."""
    if default and tol is None and rtol is None:
        rtol = max(_RTOL, _LEAST_RTOL * float(jnp.finfo(dtype).eps))
    for name, value in (("tol", tol), ("rtol", rtol)):
        if value is not None:
            _check.positive(name, _check.as_float(value))
    return Goal(-1.0 if tol is None else float(tol), -1.0 if rtol is None else float(rtol))


def _starts(problem: Any, x0: PyTree, y0: PyTree, resume: Any) -> tuple[PyTree, PyTree]:
    """x0 and y0, or those of the run that is resumed; refused where they are something else."""
    if isinstance(x0, Solver) or isinstance(y0, Solver):
        raise TypeError("the solver comes after the starting point: minimize(problem, x0, y0, solver).")
    held = resume.state if isinstance(resume, Result) else resume
    if isinstance(held, Snapshot):
        x0, y0 = held.state.x if x0 is None else x0, held.state.y if y0 is None else y0
    for name, start in (("x0", x0), ("y0", y0)):
        if start is None:
            raise TypeError(
                f"{name} is required: the point to start from. Only a run that is resumed from a Result or its .state "
                "knows it already."
            )
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((problem, x0, y0))):
        raise TypeError(
            "minimize runs on the host and cannot be traced by jit, grad or vmap: use proxbi.run for jit and vmap, or "
            "value_and_hypergradient for derivatives."
        )
    return x0, y0


def _with_bar(callbacks: Sequence[AnyCallback], progress: bool) -> Sequence[AnyCallback]:
    if not isinstance(callbacks, Sequence):
        raise TypeError(f"callbacks must be a list of callbacks, got {type(callbacks).__name__}.")
    if not progress or any(isinstance(callback, Progress) for callback in callbacks):
        return callbacks
    return [*callbacks, Progress()]


def _first_snapshot(problem: Problem, solver: Solver, state: PyTree, resume: Any) -> Snapshot:
    first = Snapshot(0, state, Counts(), [])
    if resume is None:
        return first
    if isinstance(resume, Result):
        resume = resume.state
    if isinstance(resume, Snapshot):
        if jax.eval_shape(lambda: resume.state) != jax.eval_shape(lambda: first.state):
            raise ValueError("resume: its state does not fit this solver, x0 and y0.")
        return resume
    if not isinstance(resume, str | PathLike):
        raise TypeError(
            f"resume must be a Result, its .state, or a checkpoint file or folder, got {type(resume).__name__}."
        )
    found = checkpoint.load(Path(fspath(resume)), first.state, checkpoint.fingerprint(problem, solver))
    return found or first


def _open_callbacks(callbacks: Sequence[AnyCallback], run: Run, stack: ExitStack, loop: _Run) -> None:
    for callback in callbacks:
        given: Any = callback
        if isinstance(given, type) or not callable(given):  # `Progress` instead of `Progress()`
            raise TypeError(f"callbacks must be Callback objects or functions of (row, snapshot), got {callback!r}.")
        if isinstance(callback, Callback):
            callback.open(run)
            stack.callback(_close, callback, loop)


def _close(callback: Callback, loop: _Run) -> None:
    callback.close(loop.snapshot)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag; the second one is Python's own."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield lambda: False  # signals go to the main thread only, and a background job (nohup) ignores this one
        return
    pressed = []

    def on_interrupt(number: int, frame: Any) -> None:
        pressed.append(True)
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, previous)
