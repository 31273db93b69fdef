"""`minimize_many`: several starts in one compiled program.

The runs are those of `minimize`, and end by the same rules: `_Lane` is its `_Run`, whose compiled steps are taken for
all starts together. A start that has converged or failed takes no more steps; `vmap` freezes its state while the
others go on.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi import _check, _compile, _driver, _loop
from proxbi._driver import Driver
from proxbi._loop import Chunk, Goal
from proxbi._validate import checked
from proxbi.certificate import Bounds, Certificate
from proxbi.problem import Counts, Problem
from proxbi.result import Result, Snapshot, SolveError, Status
from proxbi.solvers import AdaptiveProxBiO, Solver

_EVERY = 10  # steps in a chunk, as in `minimize`


@dataclass(frozen=True)
class ManyResult:
    """What `minimize_many` returns. `str(result)` is a table."""

    results: list[Result]
    """One for each start, as `minimize` returns it; the seconds are those of all starts together."""

    @property
    def best(self) -> Result:
        """The one with the lowest objective, among those that did not break down if there are any."""
        return min(self.results, key=_rank)

    @property
    def statuses(self) -> list[Status]:
        """How each run ended."""
        return [result.status for result in self.results]

    def __str__(self) -> str:
        ended = Counter(status.name for status in self.statuses)
        best = next(k for k, result in enumerate(self.results) if result is self.best)
        lines = [
            f"{len(self.results)} starts: {', '.join(f'{count} {name}' for name, count in ended.items())}; "
            f"best: start {best}, objective {self.best.objective:.6g}.",
            f"{'start':>5}  {'status':<18} {'steps':>5} {'objective':>13} {'stationarity':>12} {'calls':>7}",
        ]
        for k, r in enumerate(self.results):
            numbers = f"{r.steps:>5} {r.objective:>13.6g} {r.stationarity:>12.1e} {r.counts.total:>7}"
            lines.append(f"{k:>5}  {r.status.name:<18} {numbers}")
        return "\n".join(lines)


def _rank(result: Result) -> tuple[bool, float]:
    return result.status.failed, result.objective if np.isfinite(result.objective) else np.inf


def minimize_many(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    solver: Solver | None = None,
    *,
    steps: int = 1000,
    tol: float | None = None,
    rtol: float | None = None,
    bounds: Bounds | None = None,
    throw: bool = True,
) -> ManyResult:
    """Minimise f(x, y*(x)) + h(x) over x from several starts at once, and keep the best of the answers.

    Where Phi + h is not convex, a run of `minimize` finds a stationary point near its start; from many starts one
    finds several of these, in about the time that the longest takes on a device with room for all.

    **Arguments:**

    - `problem`: what to solve.
    - `x0s`, `y0s`: the starts: as x0 and y0 of `minimize`, with a first axis over the starts in every leaf.
    - `solver`, `steps`, `tol`, `rtol`, `bounds`: as in `minimize`, for each start.
    - `throw`: raise `SolveError` if every run broke down before it found a point better than its start.

    **Returns:** a `ManyResult`: `.best`, `.results` (a `Result` for each start, with its own status), `.statuses`.
    A start that is bad disturbs no other. Ctrl-C returns what was reached.

    >>> from proxbi import Problem
    >>> def lower(x, y):
    ...     return jnp.sum((y - x) ** 2)
    >>> def upper(x, y):  # minima near -1 and 1, of which that near -1 is the lower one
    ...     return jnp.sum((y**2 - 1) ** 2 + 0.3 * y)
    >>> starts = jnp.array([[1.2], [0.5], [-0.5]])
    >>> found = minimize_many(Problem(upper, lower), starts, jnp.zeros((3, 1)))
    >>> print([f"{result.x[0]:.2f}" for result in found.results], f"{found.best.x[0]:.2f}")
    ['0.96', '0.96', '-1.04'] -1.04
    """
    _check.positive_int("steps", steps)
    if bounds is not None and not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a proxbi Bounds such as Bounds(mu=0.1, cross=1.0), got {bounds!r}.")
    x0s, y0s = _check.float_tree("x0s", x0s), _check.float_tree("y0s", y0s)
    _require_starts(x0s, y0s)
    goal = _driver.goal_of(tol, rtol, solver is None, jax.tree.leaves(x0s)[0].dtype)
    solver = AdaptiveProxBiO() if solver is None else solver
    problem, _, _, _ = checked(problem, solver, *_picked((x0s, y0s), jnp.int32(0)))
    batch = _Batch(problem, solver, _init(problem, solver, x0s, y0s), goal, bounds)
    with _driver.interruptible() as interrupted:
        batch.run(steps, interrupted)
    found = ManyResult(batch.results())
    if throw and all(result.status.failed and not result.improved for result in found.results):
        raise SolveError(found.best)
    return found


def _require_starts(x0s: PyTree, y0s: PyTree) -> None:
    """One number of starts for all leaves."""
    named = [
        (name + jax.tree_util.keystr(path), leaf.shape)
        for name, tree in (("x0s", x0s), ("y0s", y0s))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    for name, shape in named:
        if not shape:
            raise ValueError(f"{name} is a single number: its first axis must be that of the starts.")
        if shape[0] != named[0][1][0]:
            first, other = named[0]
            raise ValueError(
                f"{first} has {other[0]} starts, but {name} has {shape[0]} (shape {shape}): the first axis of every "
                "leaf of x0s and y0s must be that of the starts. Repeat what is shared, for example with jnp.stack."
            )


class _Place(NamedTuple):
    """The part of a state that a row needs."""

    x: PyTree
    y: PyTree


class _Lane(Driver):
    """One of the runs: its steps and its certificate come from the batch."""

    status: Status | None = None
    begun: bool = True
    answer: tuple[_Place, Certificate] | None = None

    def _certify(self) -> tuple[PyTree, Certificate]:
        assert self.answer is not None, "the batch certifies before it asks"
        self.certificate = self.answer[1]
        return self.answer


class _Batch:
    """All runs, and their states stacked."""

    def __init__(self, problem: Problem, solver: Solver, states: PyTree, goal: Goal, bounds: Bounds | None):
        self.problem, self.solver, self.states = problem, solver, states
        self.bounds = _driver.numbers_of(bounds)
        self.key, self.pace, self.seconds = jax.random.key(0), 0.0, 0.0
        starts = range(len(jax.tree.leaves(states.x)[0]))
        self.lanes = [
            _Lane(problem, solver, self.key, Snapshot(0, p, Counts(), []), goal, bounds) for p in self._places()
        ]
        self.goal = self.lanes[0].goal
        feasible = (
            jax.vmap(lambda x: _driver.feasible(problem, x))(states.x)
            if solver.looks_ahead
            else np.ones(len(starts), bool)
        )
        for lane, good in zip(self.lanes, np.asarray(feasible), strict=True):
            lane.begun, lane.status = bool(good), None if good else Status.INFEASIBLE_START

    def run(self, steps: int, interrupted: Callable[[], bool]) -> None:
        """Until every run has a status."""
        start = time.perf_counter()
        jax.block_until_ready(self._steps(self.states, [0] * len(self.lanes)))
        for lane in self.lanes:
            lane.compile_seconds = time.perf_counter() - start
        while going := [lane for lane in self.lanes if lane.status is None]:
            self._chunk({id(lane): lane.chunk(_EVERY, steps) for lane in going}, interrupted)
            near = [lane for lane in going if lane.status is None and lane.near()]
            refined = self._certify(near)
            for lane in near:
                lane.status = lane.settle()
            self._refine(near, refined)
            for lane in going:
                if lane.status is None and lane.snapshot.step >= steps:
                    lane.status = Status.STEPS

    def results(self) -> list[Result]:
        """Of all runs, each with its own certificate."""
        self._certify([lane for lane in self.lanes if lane.begun and lane.certificate is None])
        made = []
        for k, lane in enumerate(self.lanes):
            assert lane.status is not None
            lane.snapshot = lane.snapshot._replace(state=_picked(self.states, jnp.int32(k)))
            made.append(lane.result(lane.status) if lane.begun else lane.untouched(lane.status))
        return made

    def _chunk(self, left: dict[int, int], interrupted: Callable[[], bool]) -> None:
        """As many steps as are `left` for each lane, in slices of about a second, and a row for each."""
        infos: dict[int, Any] = {}
        while any(left.values()):
            start, longest = time.perf_counter(), max(left.values())
            part = 1 if self.pace == 0 else max(1, min(longest, int(_driver.SLICE / self.pace)))
            wanted = [min(part, left.get(id(lane), 0)) for lane in self.lanes]
            done = jax.block_until_ready(self._steps(self.states, wanted))
            self.states = done.state
            self._clock(start, max(1, int(np.max(done.steps))))
            small = _driver.on_host(done._replace(state=None))
            for k, (lane, place) in enumerate(zip(self.lanes, self._places(), strict=True)):
                if wanted[k]:
                    own = jax.tree.map(lambda leaf, k=k: leaf[k], small)._replace(state=place)
                    left[id(lane)] = self._taken(lane, own, wanted[k], left[id(lane)], infos)
            if interrupted():
                left = {}
                for lane in self.lanes:
                    lane.status = lane.status or Status.INTERRUPTED
        for lane in self.lanes:
            if id(lane) in infos:
                lane.snapshot.history.append(lane._row(infos[id(lane)]))

    def _taken(self, lane: _Lane, done: Chunk, wanted: int, left: int, infos: dict[int, Any]) -> int:
        """Hand a lane its part of a slice; how many steps it has left."""
        lane._take(done)
        taken = int(done.steps)
        if taken:
            infos[id(lane)] = done.info
        lane.status = lane._status(done)
        return 0 if lane.status or taken < wanted or lane._there(done) else left - taken

    def _certify(self, lanes: list[_Lane]) -> PyTree:
        """The certificates of some lanes, in one go, and the states that they refined."""
        if not lanes:
            return None
        start, chosen = time.perf_counter(), [int(lane in lanes) for lane in self.lanes]
        before = _rechecked(self.solver, self.states)
        done = self._steps(before, chosen)
        certificates = _certificates(self.problem, self.solver, before, done, self.bounds)
        jax.block_until_ready(certificates)
        self._clock(start, None)
        places = self._places(done.state)
        for k, lane in enumerate(self.lanes):
            if lane in lanes:
                own = _picked(certificates, jnp.int32(k))._replace(guaranteed=lane.guarantees())
                lane.answer = (places[k], own)
                lane.certificate = own
        return done.state

    def _refine(self, lanes: list[_Lane], refined: PyTree) -> None:
        """Where a lane goes on from what its certificate refined, so does its state."""
        on = [
            lane in lanes and lane.answer is not None and lane.snapshot.state is lane.answer[0] for lane in self.lanes
        ]
        if any(on):
            self.states = _chosen(jnp.asarray(on), refined, self.states)

    def _steps(self, states: PyTree, steps: list[int]) -> Chunk:
        first = jnp.asarray([lane.snapshot.step for lane in self.lanes], jnp.int32)
        return _advance(self.problem, self.solver, states, self.key, first, jnp.asarray(steps, jnp.int32), self.goal)

    def _places(self, states: PyTree = None) -> list[_Place]:
        states = self.states if states is None else states
        x, y = jax.device_get((states.x, states.y))
        number = len(jax.tree.leaves(x)[0])
        return [_Place(*jax.tree.map(lambda leaf, k=k: leaf[k], (x, y))) for k in range(number)]

    def _clock(self, start: float, steps: int | None) -> None:
        spent = time.perf_counter() - start
        self.seconds += spent
        self.pace = self.pace if steps is None else spent / steps
        for lane in self.lanes:
            lane.run_seconds = self.seconds


@_compile.jit
def _init(problem: Problem, solver: Solver, x0s: PyTree, y0s: PyTree) -> PyTree:
    return jax.vmap(lambda x, y: solver.init(problem, x, y))(x0s, y0s)


@_compile.jit
def _advance(
    problem: Problem,
    solver: Solver,
    states: PyTree,
    key: PRNGKeyArray,
    first: Int[Array, " starts"],
    steps: Int[Array, " starts"],
    goal: Goal,
) -> Chunk:
    """`steps` steps of each run, as many as its entry says."""
    most = jnp.int32(_driver.MOST_CALLS)

    def one(state: PyTree, first: Int[Array, ""], steps: Int[Array, ""]) -> Chunk:
        return _loop.advance(problem, solver, state, key, first, steps, goal, most)

    return jax.vmap(one)(states, first, steps)


@_compile.jit
def _rechecked(solver: Solver, states: PyTree) -> PyTree:
    return jax.vmap(solver.recheck)(states)


@_compile.jit
def _certificates(
    problem: Problem, solver: Solver, before: PyTree, done: Chunk, bounds: tuple[float, ...] | None
) -> Certificate:
    def one(before: PyTree, done: Chunk) -> Certificate:
        return _driver.certificate_of(problem, solver, before, done, bounds)

    return jax.vmap(one)(before, done)


@jax.jit
def _picked(tree: PyTree, start: Int[Array, ""]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[start], tree)


@jax.jit
def _chosen(on: Array, yes: PyTree, no: PyTree) -> PyTree:
    return jax.vmap(lambda on, a, b: jax.tree.map(lambda p, q: jnp.where(on, p, q), a, b))(on, yes, no)
