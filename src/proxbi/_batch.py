"""Several runs in one compiled program, each with its own solver and start.

The runs are those of `minimize`, and end by the same rules: `_Lane` is its `_Run`, whose compiled steps are taken for
all runs together. A run that has converged or failed takes no more steps; `vmap` freezes its state while the others go
on. What they share, the data of the problem above all, is read once for all of them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi import _compile, _driver, _loop
from proxbi._driver import Driver
from proxbi._loop import Chunk, Goal
from proxbi.certificate import Bounds, Certificate
from proxbi.problem import Counts, Problem
from proxbi.result import Result, Snapshot, Status
from proxbi.solvers import Solver

_EVERY = 10  # steps in a chunk, as in `minimize`


def together(
    problem: Problem,
    solvers: Sequence[Solver],
    x0s: PyTree,
    y0s: PyTree,
    goal: Goal,
    bounds: Bounds | None,
    steps: int,
) -> list[Result]:
    """The runs of all solvers, each from its own start, in one program."""
    batch = _Batch(problem, [solver.under_vmap() for solver in solvers], x0s, y0s, goal, bounds)
    with _driver.interruptible() as interrupted:
        batch.run(steps, interrupted)
    return batch.results()


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

    def __init__(
        self,
        problem: Problem,
        solvers: Sequence[Solver],
        x0s: PyTree,
        y0s: PyTree,
        goal: Goal,
        bounds: Bounds | None,
    ):
        self.problem, self.solvers = problem, jax.tree.map(lambda *leaves: jnp.stack(leaves), *solvers)
        self.states = states = _init(problem, self.solvers, x0s, y0s)
        self.bounds = _driver.numbers_of(bounds)
        self.key, self.pace, self.seconds = jax.random.key(0), 0.0, 0.0
        self.lanes = [
            _Lane(problem, solver, self.key, Snapshot(0, place, Counts(), []), goal, bounds)
            for solver, place in zip(solvers, self._places(), strict=True)
        ]
        self.goal = self.lanes[0].goal
        feasible = (
            jax.vmap(lambda x: _driver.feasible(problem, x))(states.x)
            if solvers[0].looks_ahead
            else np.ones(len(solvers), bool)
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
            lane.snapshot = lane.snapshot._replace(state=picked(self.states, jnp.int32(k)))
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
        before = _rechecked(self.solvers, self.states)
        done = self._steps(before, chosen)
        certificates = _certificates(self.problem, self.solvers, before, done, self.bounds)
        jax.block_until_ready(certificates)
        self._clock(start, None)
        places = self._places(done.state)
        for k, lane in enumerate(self.lanes):
            if lane in lanes:
                own = picked(certificates, jnp.int32(k))._replace(guaranteed=lane.guarantees())
                lane.answer = (places[k], own)
                lane.certificate = own
        return done.state

    def _refine(self, lanes: list[_Lane], refined: PyTree) -> None:
        """A lane that continues from the refined point of its certificate gets its state, too."""
        on = [
            lane in lanes and lane.answer is not None and lane.snapshot.state is lane.answer[0] for lane in self.lanes
        ]
        if any(on):
            self.states = _chosen(jnp.asarray(on), refined, self.states)

    def _steps(self, states: PyTree, steps: list[int]) -> Chunk:
        first = jnp.asarray([lane.snapshot.step for lane in self.lanes], jnp.int32)
        return _advance(self.problem, self.solvers, states, self.key, first, jnp.asarray(steps, jnp.int32), self.goal)

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
def _init(problem: Problem, solvers: Solver, x0s: PyTree, y0s: PyTree) -> PyTree:
    return jax.vmap(lambda solver, x, y: solver.init(problem, x, y))(solvers, x0s, y0s)


@_compile.jit
def _advance(
    problem: Problem,
    solvers: Solver,
    states: PyTree,
    key: PRNGKeyArray,
    first: Int[Array, " runs"],
    steps: Int[Array, " runs"],
    goal: Goal,
) -> Chunk:
    """`steps` steps of each run, as many as its entry says."""
    most = jnp.int32(_driver.MOST_CALLS)

    def one(solver: Solver, state: PyTree, first: Int[Array, ""], steps: Int[Array, ""]) -> Chunk:
        return _loop.advance(problem, solver, state, key, first, steps, goal, most)

    return jax.vmap(one)(solvers, states, first, steps)


@_compile.jit
def _rechecked(solvers: Solver, states: PyTree) -> PyTree:
    return jax.vmap(lambda solver, state: solver.recheck(state))(solvers, states)


@_compile.jit
def _certificates(
    problem: Problem, solvers: Solver, before: PyTree, done: Chunk, bounds: tuple[float, ...] | None
) -> Certificate:
    def one(solver: Solver, before: PyTree, done: Chunk) -> Certificate:
        return _driver.certificate_of(problem, solver, before, done, bounds)

    return jax.vmap(one)(solvers, before, done)


@jax.jit
def picked(tree: PyTree, start: Int[Array, ""]) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[start], tree)


@jax.jit
def _chosen(on: Array, yes: PyTree, no: PyTree) -> PyTree:
    return jax.vmap(lambda on, a, b: jax.tree.map(lambda p, q: jnp.where(on, p, q), a, b))(on, yes, no)
