"""`minimize`: the loop that users call.

The compiled unit is a chunk of up to `every` steps. Everything else (metrics, progress, checkpoints, stopping) happens
in Python between chunks, with the clock stopped. Inside a chunk an error is data: the loop ends at the last finite
state and reports why. A chunk whose steps are slow is cut into slices of about a second, so that Ctrl-C and time
limits act soon; where the cuts are changes no number.
"""

import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check, checkpoint
from proxbi._driver import Driver, ending, feasible, goal_of
from proxbi._estimate import require_rows_for
from proxbi._hosted import hosted
from proxbi._place import HERE, Place
from proxbi._saved import SavedState
from proxbi._streamed import Streamed, on_sample, rows_flow
from proxbi._validate import checked
from proxbi.callbacks import AnyCallback, Callback, Checkpoint, Progress, Run
from proxbi.certificate import Bounds
from proxbi.problem import Counts, Problem, in_blocks
from proxbi.result import Result, Seconds, Snapshot, SolveError, SolveWarning, Status
from proxbi.rows._host import heard_of_it, in_its_words
from proxbi.solvers import BLOCK, AdaptiveProxBiO, OnBatches, Solver


def _is_news(record: logging.LogRecord) -> bool:
    """Whether JAX should log this error of a callback: not where `minimize` raises it in its own words."""
    return not heard_of_it()


logging.getLogger("jax._src.callback").addFilter(_is_news)


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
    every: int | None = None,
    callbacks: Sequence[AnyCallback] = (),
    progress: bool = False,
    resume: Result | Snapshot | str | PathLike[str] | None = None,
    throw: bool = True,
    key: PRNGKeyArray | None = None,
    polish: bool = False,
) -> Result:
    """Minimise f(x, y*(x)) + h(x) over x.

    **Arguments:**

    - `problem`: what to solve.
    - `x0`, `y0`: where to start, any pytrees of finite floating point arrays of one dtype. Not needed with a `resume`
      that holds them.
    - `solver`: the method; by default `AdaptiveProxBiO()`, which has nothing to set.
    - `steps`: the maximal number of outer steps, including those before a resume.
    - `tol`: stop once the stationarity, an estimate of dist(0, d(Phi + h)(x)), is at most this.
    - `rtol`: or once it is at most this times the gradient that the curvature of Phi near x builds up from x0 to x:
      the rule does not depend on units, on constants added to f, or on how steep f is at x0. (The default solver also
      applies it to the predicted remaining decrease. For an x0 that is nearly an answer, a hundredth of this times the
      terms that cancel in d + s is enough.) 1e-6 in float64 and 1e-4 in float32 if
      neither a solver nor `tol` is given.
    - `bounds`: constants of the problem, for guaranteed bounds instead of estimates in the result.
    - `every`: the length of a chunk: metrics, callbacks and stopping tests run every so many steps (and after the
      first one, in which the default solver evaluates x0, and to which `rtol` refers). By default 10, and 100 for
      solvers on batches.
    - `callbacks`: see `proxbi.callbacks`.
    - `progress`: True shows a progress bar on the terminal.
    - `resume`: a `Result` (also one of `load_result`), its `.state`, or a checkpoint file or directory to continue
      from. A directory without checkpoints starts a new run, so that one script serves the first run and every restart.
      The run continues bit for bit as if it had never stopped.
    - `throw`: raise `SolveError` if the run broke down before it found a point better than x0, and warn if it broke
      down later and returns the best point. False does neither: the result holds the last finite iterate and the
      status.
    - `key`: for stochastic solvers; step k gets `fold_in(key, k)`.
    - `polish`: after a solver on batches, continue with the default solver on all rows, from the point it found, for as
      many steps and with the same tolerances.

    Ctrl-C stops within about a second of the current step and returns the last iterate; a second one raises.

    **Returns:** a `Result`: `.x`, `.y`, `.converged`, `.objective`, `.stationarity`, `.status`, `.history`, ...

    >>> import jax.numpy as jnp
    >>> from proxbi import L1, Problem
    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(1.0))
    >>> result = minimize(problem, jnp.zeros(2), jnp.zeros(2))
    >>> print(result.x.round(3), result.status.name)
    [1.5 1.5] CONVERGED
    """
    _check.positive_int("steps", steps)
    x0, y0 = _starts(problem, x0, y0, resume)
    if bounds is not None and not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a proxbi Bounds such as Bounds(mu=0.1, cross=1.0), got {bounds!r}.")
    default = solver is None
    solver = AdaptiveProxBiO() if solver is None else solver
    callbacks = _with_bar(callbacks, progress)
    if rows_flow(problem) and not isinstance(solver, OnBatches):
        problem = hosted(problem, x0, y0)
    given, streamed = problem, rows_flow(problem)
    if polish:
        _require_polish(solver, streamed)
    problem = on_sample(problem, solver) if streamed else problem
    with in_its_words():
        problem, x0, y0, first = checked(problem, solver, x0, y0, anywhere=True)
    every = solver.reports_every if every is None else every
    _check.positive_int("every", every)
    if isinstance(solver, OnBatches):
        require_rows_for(problem, solver, x0)
    goal = goal_of(tol, rtol, default, jax.tree.leaves(x0)[0].dtype)
    described = given if streamed else problem
    snapshot = _first_snapshot(described, solver, first, resume)
    problem.place.require_alike(steps=steps, every=every, tolerances=goal, step_to_resume_from=snapshot.step)
    key = jax.random.key(0) if key is None else key
    loop: Driver = Driver(problem, solver, key, snapshot, goal, bounds)
    if streamed:
        loop = Streamed(problem, given.data, solver, key, snapshot, goal, bounds)
    if snapshot.step == 0 and solver.looks_ahead and not feasible(problem, x0):
        return _returned(_fetched(problem.place, loop.untouched(Status.INFEASIBLE_START)), throw)

    saves = any(isinstance(callback, Checkpoint) for callback in callbacks)
    with in_its_words(), problem.place.together(), ending(terminated=saves) as ended, ExitStack() as stack:
        stack.callback(loop.close)
        _open_callbacks(callbacks, Run(described, solver, steps, snapshot.step), stack, loop)
        loop.compile()
        status: Status | None = None
        while status is None and loop.snapshot.step < steps:
            rows = len(loop.snapshot.history)
            status = loop.advance(loop.chunk(every, steps), callbacks, ended)
            for row in loop.snapshot.history[rows:]:
                asked = [callback(row, loop.snapshot) for callback in callbacks]
                status = status or next((a if isinstance(a, Status) else Status.STOPPED for a in asked if a), None)
            status = loop.agreed(status or ended())
            if status is None and loop.near():
                status = loop.settle()
        result = _fetched(problem.place, loop.result(status or Status.STEPS))
    if polish and not result.status.failed and result.status not in (Status.INTERRUPTED, Status.PREEMPTED):
        result = _polished(given, result, steps, tol, rtol, bounds)
    return _returned(result, throw)


def _fetched(place: Place, result: Result) -> Result:
    """The result as it would be on one device."""
    if place is HERE:
        return result
    state = jax.tree.map(jnp.asarray, place.fetched(result.state.state))
    return replace(
        result, x=place.fetched_x(result.x), y=place.fetched_y(result.y), state=result.state._replace(state=state)
    )


def _require_polish(solver: Solver, streamed: bool) -> None:
    if not isinstance(solver, OnBatches):
        raise ValueError(f"polish is for solvers on batches; {type(solver).__name__} uses all rows already.")
    if streamed:
        raise ValueError("polish needs all rows on the device, but the rows of data are on the host.")


def _polished(
    problem: Problem, found: Result, steps: int, tol: float | None, rtol: float | None, bounds: Bounds | None
) -> Result:
    """The default solver on all rows from where `found` is, with the history and the counts of both."""
    whole = in_blocks(problem, BLOCK)
    better = minimize(whole, found.x, found.y, steps=steps, tol=tol, rtol=rtol, bounds=bounds, throw=False)
    before = found.steps
    return replace(
        better,
        history=found.history + [row | {"step": before + row["step"]} for row in better.history],
        counts=found.counts + better.counts,
        seconds=Seconds(*(a + b for a, b in zip(found.seconds, better.seconds, strict=True))),
    )


def _returned(result: Result, throw: bool) -> Result:
    """The result of a run that did not break down. Otherwise raise if it found nothing better than x0, else warn."""
    if not throw:
        return result
    if result.status.failed and not result.improved:
        raise SolveError(result)
    if result.status.failed or result.status is Status.FLAT_START:
        warnings.warn(f"{result.status.name}: {result.sentence}", SolveWarning, stacklevel=3)
    return result


def _starts(problem: Any, x0: PyTree, y0: PyTree, resume: Any) -> tuple[PyTree, PyTree]:
    """x0 and y0, or those of the resumed run; raises if they are something else."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a proxbi Problem, got {type(problem).__name__}: minimize(problem, x0, y0).")
    if isinstance(x0, Solver) or isinstance(y0, Solver):
        raise TypeError("the solver comes after the starting point: minimize(problem, x0, y0, solver).")
    held = resume.state if isinstance(resume, Result) else resume
    if isinstance(held, Snapshot):
        x0, y0 = held.state.x if x0 is None else x0, held.state.y if y0 is None else y0
    for name, start in (("x0", x0), ("y0", y0)):
        if start is None:
            raise TypeError(
                f"{name} is required: the point to start from. Only a run resumed from a Result or its .state has one "
                "already."
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
    first, place = Snapshot(0, state, Counts(), []), problem.place
    if resume is None:
        return first
    if isinstance(resume, Result):
        resume = resume.state
    if isinstance(resume, Snapshot):
        if isinstance(resume.state, SavedState):
            resume = resume._replace(state=resume.state.shaped_as(first.state))
        if jax.eval_shape(lambda: resume.state) != place.shapes(first.state):
            raise ValueError("resume: its state does not match this solver, x0 and y0.")
        return resume._replace(state=place.put(resume.state))
    if not isinstance(resume, str | PathLike):
        raise TypeError(
            f"resume must be a Result, its .state, or a checkpoint file or directory, got {type(resume).__name__}."
        )
    like = first.state if place is HERE else place.shapes(first.state)
    found = checkpoint.load(Path(fspath(resume)), like, checkpoint.fingerprint(problem, solver))
    return first if found is None else found._replace(state=place.put(found.state))


def _open_callbacks(callbacks: Sequence[AnyCallback], run: Run, stack: ExitStack, loop: Driver) -> None:
    for callback in callbacks:
        given: Any = callback
        if isinstance(given, type) or not callable(given):  # `Progress` instead of `Progress()`
            raise TypeError(f"callbacks must be Callback objects or functions of (row, snapshot), got {callback!r}.")
        if isinstance(callback, Callback):
            callback.open(run)
            stack.callback(_close, callback, loop)


def _close(callback: Callback, loop: Driver) -> None:
    """If one of several processes broke down, the others do not know, so do not wait for them."""
    alone = loop.problem.place.shared and sys.exc_info()[0] is not None
    if not alone:
        callback.close(loop.snapshot)
