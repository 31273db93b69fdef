"""`minimize`: the only outer loop of the package.

The compiled unit is a chunk of up to `every` steps. Everything else (metrics, progress, checkpoints, stopping) happens
in Python between chunks, with the clock stopped. Inside a chunk an error is data: the loop ends at the last finite
state and reports why.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from proxbi import _check, _tree, checkpoint, chunk
from proxbi.certificate import Bounds, Certificate, certify
from proxbi.checkpoint import Snapshot
from proxbi.problem import Counts, Problem
from proxbi.result import Result, Seconds, SolveError, Status
from proxbi.solvers import AdaptiveProxBiO, Fault, Info, Solver
from proxbi.validate import checked


class Run(NamedTuple):
    """What a callback is told when a run opens."""

    problem: Problem
    solver: Solver
    steps: int
    first: int
    """The step the run starts from; 0 unless it was resumed."""


class Callback:
    """Called after each chunk as `callback(row, snapshot)`. To stop the run return True or a `Status`. Plain
    functions do too.
    """

    def open(self, run: Run) -> None:
        """Before the first chunk, before compilation."""

    def __call__(self, row: dict[str, Any], snapshot: Snapshot) -> bool | Status | None:
        """After each chunk."""

    def close(self, snapshot: Snapshot) -> None:
        """At the end, however the run ended."""


AnyCallback = Callback | Callable[[dict[str, Any], Snapshot], bool | Status | None]


def minimize(
    problem: Problem,
    solver: Solver | None = None,
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    steps: int = 1000,
    tol: float | None = None,
    rtol: float | None = None,
    bounds: Bounds | None = None,
    every: int = 10,
    callbacks: Sequence[AnyCallback] = (),
    resume: Result | Snapshot | str | PathLike[str] | None = None,
    throw: bool = True,
    key: PRNGKeyArray | None = None,
) -> Result:
    """Minimise f(x, y*(x)) + h(x) over x.

    **Arguments:**

    - `problem`, `solver`: what to solve, and how; without a solver `AdaptiveProxBiO()`, which has nothing to set.
    - `x0`, `y0`: where to start, any pytrees of finite floating point arrays.
    - `steps`: the most outer steps in all, those of a resumed run included.
    - `tol`: stop once the stationarity, an estimate of dist(0, d(Phi + h)(x)), is at most this.
    - `rtol`: or once it is at most this times what it was at x0. 1e-6 if neither a solver nor `tol` is given.
    - `bounds`: constants of the problem, for guaranteed bounds instead of estimates in the result.
    - `every`: the length of a chunk: metrics, callbacks, stopping tests and Ctrl-C happen every so many steps.
    - `callbacks`: see `proxbi.callbacks`.
    - `resume`: a `Result`, its `.state`, or a checkpoint file or folder to go on from. A folder without checkpoints
      starts afresh, so that one script serves the first run and every restart. The run goes on bit for bit as if it
      had never stopped.
    - `throw`: raise `SolveError` where the run broke down; False returns the last finite iterate with the status.
    - `key`: for stochastic solvers; step k gets `fold_in(key, k)`.

    Ctrl-C stops after the current chunk and returns what was reached; a second one raises.

    >>> from proxbi import L1, Problem
    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(1.0))
    >>> result = minimize(problem, x0=jnp.zeros(2), y0=jnp.zeros(2))
    >>> print(result.x.round(3), result.status.name)
    [1.5 1.5] CONVERGED
    """
    _check.positive_int("steps", steps)
    _check.positive_int("every", every)
    if solver is None and tol is None and rtol is None:
        rtol = 1e-6
    for name, value in (("tol", tol), ("rtol", rtol)):
        if value is not None:
            _check.positive(name, _check.as_float(value))
    for name, start in (("x0", x0), ("y0", y0)):
        if start is None:
            raise TypeError(f"{name} must be given: where to start.")
    if bounds is not None and not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a proxbi Bounds such as Bounds(mu=0.1, cross=1.0), got {bounds!r}.")
    solver = AdaptiveProxBiO() if solver is None else solver
    problem, x0, y0 = checked(problem, solver, x0, y0)
    snapshot = _first_snapshot(problem, solver, x0, y0, resume)
    loop = _Loop(problem, solver, jax.random.key(0) if key is None else key, snapshot, _Goal(tol, rtol), bounds)

    status: Status | None = None
    with _interruptible() as interrupted, ExitStack() as stack:
        _open_callbacks(callbacks, Run(problem, solver, steps, snapshot.step), stack, loop)
        loop.compile()
        while status is None and loop.snapshot.step < steps:
            status = loop.advance(loop.goal.first_chunk(loop.snapshot, min(every, steps - loop.snapshot.step)))
            asked = (
                [callback(loop.snapshot.history[-1], loop.snapshot) for callback in callbacks] if status is None else []
            )
            status = status or next((a if isinstance(a, Status) else Status.STOPPED for a in asked if a), None)
            if status is None and interrupted():
                status = Status.INTERRUPTED
            if status is None and loop.near():
                status = loop.settle()
    result = loop.result(status or Status.STEPS)
    if throw and result.status.failed:
        raise SolveError(result)
    return result


class _Goal(NamedTuple):
    tol: float | None
    rtol: float | None

    def first_chunk(self, snapshot: Snapshot, steps: int) -> int:
        """One step at first where the tolerance is relative: its stationarity is that of x0, and the first row keeps
        it.
        """
        return 1 if self.rtol is not None and not snapshot.history else steps

    def threshold(self, snapshot: Snapshot) -> float:
        """The stationarity to reach; -1 if there is none."""
        known = self.rtol is not None and snapshot.history
        relative = self.rtol * snapshot.history[0]["stationarity"] if known and self.rtol is not None else -1.0
        return max(relative, -1.0 if self.tol is None else self.tol)


class _Loop:
    """The state of a run and the operations on it."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver,
        key: PRNGKeyArray,
        snapshot: Snapshot,
        goal: _Goal,
        bounds: Bounds | None,
    ):
        self.problem, self.solver, self.key = problem, solver, key
        self.snapshot, self.goal, self.bounds = snapshot, goal, bounds
        self.compile_seconds = self.run_seconds = 0.0
        self.rechecks = 0

    def compile(self) -> None:
        """Zero steps through the compiled chunk: what it takes is the time to compile, nothing if that was done
        before.
        """
        start = time.perf_counter()
        jax.block_until_ready(self._chunk(0))
        self.compile_seconds = time.perf_counter() - start

    def advance(self, steps: int) -> Status | None:
        """Up to `steps` steps and the row that describes them; the status if they broke down."""
        start = time.perf_counter()
        done = jax.block_until_ready(self._chunk(steps))
        self.run_seconds += time.perf_counter() - start
        step = self.snapshot.step + int(done.steps)
        counts = self.snapshot.counts + jax.tree.map(int, done.counts)
        fault = None
        if done.fault:
            fault = Status.NONFINITE_START if step == 0 and done.fault == chunk.DIVERGED else _FAULTS[int(done.fault)]
        history = self.snapshot.history
        if int(done.steps):
            history = [*history, self._row(step, done.state, done.info, counts)]
        self.snapshot = Snapshot(step, done.state, counts, history)
        return fault

    def near(self) -> bool:
        """Whether the last step found its x as stationary as was asked for."""
        return bool(self.snapshot.history[-1]["stationarity"] <= self.goal.threshold(self.snapshot))

    def settle(self) -> Status | None:
        """Whether the present x really is: CONVERGED, or None to go on. Where the error of the hypergradient stands in
        the way, the run goes on from the better one; where that does not help, rounding is what is in the way.
        """
        threshold = self.goal.threshold(self.snapshot)
        if not self.solver.certifies_end:
            return Status.CONVERGED if self._probe().stationarity <= threshold else None
        if self._certificate().stationarity <= threshold:
            return Status.CONVERGED
        better = self._chunk(1, self.solver.recheck(self.snapshot.state))
        if better.fault == chunk.HEALTHY:
            counts = self.snapshot.counts + jax.tree.map(int, better.counts)
            self.snapshot = self.snapshot._replace(state=better.state, counts=counts)
        self.rechecks += 1
        return Status.PRECISION if self.rechecks > _MOST_RECHECKS else None

    def result(self, status: Status) -> Result:
        """The result at the present state."""
        known = self._certificate() if self.solver.certifies_end and self.snapshot.history else self._probe()
        if status is Status.STEPS and known.stationarity <= self.goal.threshold(self.snapshot):
            status = Status.CONVERGED
        _, state, counts, history = self.snapshot
        return Result(
            state.x,
            state.y,
            status,
            known.stationarity,
            known.lower_residual,
            known.linear_residual,
            history,
            counts,
            Seconds(self.compile_seconds, self.run_seconds),
            self.snapshot,
            known.hypergradient_error,
            known.guaranteed,
        )

    def _certificate(self) -> Certificate:
        """Of the present x: bounds where there are constants, else by a step that takes its hypergradient again."""
        state = self.snapshot.state
        if self.bounds is not None:
            return certify(self.problem, state.x, state.y, state.v, state.subgradient, self.bounds)
        done = self._chunk(1, self.solver.recheck(state))
        gap, change = map(float, _gap(state, done.state))
        error = change if done.fault == chunk.HEALTHY else float("inf")
        last = self.snapshot.history[-1]
        return Certificate(gap + error, error, False, last["lower_residual"], last["linear_residual"])

    def _probe(self) -> Certificate:
        """Of the present x: by the next step, which begins there and is thrown away."""
        done = self._chunk(1)
        residuals = _residuals(done.info)
        if done.fault != chunk.HEALTHY:
            residuals["stationarity"] = float("inf")
        return Certificate(hypergradient_error=None, guaranteed=False, **residuals)

    def _chunk(self, steps: int, state: PyTree = None) -> chunk.Chunk:
        first, number = jnp.int32(self.snapshot.step), jnp.int32(steps)
        tol = jnp.asarray(self.goal.threshold(self.snapshot), float)
        state = self.snapshot.state if state is None else state
        return chunk.advance(self.problem, self.solver, state, self.key, first, number, tol)

    def _row(self, step: int, state: PyTree, info: Info, counts: Counts) -> dict[str, Any]:
        upper, regularizer = map(float, _objective(self.problem, state.x, state.y))
        row = {"step": step, "objective": upper + regularizer, "upper": upper, "regularizer": regularizer}
        return row | _residuals(info) | counts.as_dict() | {"seconds": self.run_seconds}


_MOST_RECHECKS = 3


def _residuals(info: Info) -> dict[str, Any]:
    linear = None if info.linear is None else float(info.linear.residual)
    return {
        "stationarity": float(info.stationarity),
        "lower_residual": float(info.lower_residual),
        "linear_residual": linear,
    }


_FAULTS = {
    chunk.DIVERGED: Status.DIVERGED,
    chunk.NEGATIVE_CURVATURE: Status.NEGATIVE_CURVATURE,
    chunk.ADJOINT_NONFINITE: Status.ADJOINT_NONFINITE,
    Fault.INFEASIBLE_START: Status.INFEASIBLE_START,
    Fault.UNBOUNDED: Status.UNBOUNDED,
    Fault.NONSMOOTH: Status.NONSMOOTH,
    Fault.PRECISION: Status.PRECISION,
    Fault.LOWER_UNSOLVED: Status.LOWER_UNSOLVED,
}


@jax.jit
def _gap(state: PyTree, refined: PyTree) -> tuple[Array, Array]:
    """|d + s| of a state, and how far its d is from a better one."""
    return _tree.norm(_tree.axpy(1, state.subgradient, state.grad)), _tree.norm(
        _tree.subtract(refined.grad, state.grad)
    )


@jax.jit
def _objective(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    return problem.value_upper(x, y), problem.regularizer.value(x)


def _first_snapshot(problem: Problem, solver: Solver, x0: PyTree, y0: PyTree, resume: Any) -> Snapshot:
    first = Snapshot(0, solver.init(problem, x0, y0), Counts(), [])
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


def _open_callbacks(callbacks: Sequence[AnyCallback], run: Run, stack: ExitStack, loop: _Loop) -> None:
    if not isinstance(callbacks, Sequence):
        raise TypeError(f"callbacks must be a list of callbacks, got {type(callbacks).__name__}.")
    for callback in callbacks:
        given: Any = callback
        if isinstance(given, type) or not callable(given):  # `Progress` instead of `Progress()`
            raise TypeError(f"callbacks must be Callback objects or functions of (row, snapshot), got {callback!r}.")
        if isinstance(callback, Callback):
            callback.open(run)
            stack.callback(_close, callback, loop)


def _close(callback: Callback, loop: _Loop) -> None:
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
