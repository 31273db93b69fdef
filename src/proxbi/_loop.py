"""The compiled part of a run: many steps of a solver in one program, with errors as data.

`advance` serves `minimize`: it stops at the last good state. `run` is for `vmap` and stops for nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi import _compile, _tree
from proxbi._tree import Scalar
from proxbi.problem import Counts, Problem
from proxbi.solvers import Fault, Info, Solver, traced_step


def run(
    problem: Problem, solver: Solver, x0: PyTree, y0: PyTree, *, steps: int, key: PRNGKeyArray | None = None
) -> tuple[PyTree, Info]:
    """`steps` steps from (x0, y0) as one pure function: the last state and the `Info` of every step, stacked.

    For `jit` and `vmap`: over step sizes, starts, data, seeds. It checks nothing and stops for nothing.

    **Arguments:**

    - `problem`, `solver`: what to solve, and by which method.
    - `x0`, `y0`: where to start.
    - `steps`: the number of steps.
    - `key`: for stochastic solvers.

    **Returns:** the solver's state, which has `x` and `y`, and an `Info`, whose leaves have a first axis of length
    `steps`.

    >>> from proxbi import paper_solver
    >>> from proxbi.analytic import scalar_problem
    >>> def last_x(beta):
    ...     solver = paper_solver("BiO-AID", alpha=0.25, beta=beta, T=5)
    ...     return run(scalar_problem(), solver, jnp.array(0.0), jnp.array(0.0), steps=20)[0].x
    >>> print(jax.vmap(last_x)(jnp.array([0.1, 0.5])).round(2))
    [1.76 2.  ]
    """
    key = jax.random.key(0) if key is None else key

    def step(state: PyTree, number: Array) -> tuple[PyTree, Info]:
        return solver.step(problem, state, jax.random.fold_in(key, number))

    return jax.lax.scan(step, solver.init(problem, x0, y0), jnp.arange(steps))


class Goal(NamedTuple):
    """The tolerances; -1 where there is none."""

    tol: Scalar | float = -1.0
    rtol: Scalar | float = -1.0

    def reached(self, info: Any) -> Any:
        """Whether an `Info`, a `Certificate` or a row is as stationary as asked for."""
        return (info.stationarity <= self.tol) | (info.relative <= self.rtol)


class Chunk(NamedTuple):
    """The carry of the compiled loop."""

    state: PyTree
    steps: Int[Array, ""]
    fault: Int[Array, ""]
    counts: Counts
    """Of the steps that were taken."""
    wasted: Counts
    """Of the one that broke down, which a resumed run takes again."""
    info: Info


@_compile.jit
def advance(
    problem: Problem,
    solver: Solver,
    state: PyTree,
    key: PRNGKeyArray,
    first: Int[Array, ""],
    steps: Int[Array, ""],
    goal: Goal,
    calls: Int[Array, ""],
) -> Chunk:
    """Up to `steps` steps from `state`, and no further one after `calls` oracle calls; stops at the last good state
    when a step breaks down, and at the first one that reaches the goal if the solver knows. All numbers are dynamic:
    one program for all.
    """

    none = Counts(*[jnp.int32(0)] * len(vars(Counts())))

    def body(at: Chunk) -> Chunk:
        state, info = traced_step(problem, solver, at.state, jax.random.fold_in(key, first + at.steps))
        fault = jnp.where(_tree.all_finite((state.x, state.y)), jnp.asarray(info.fault), int(Fault.DIVERGED))
        # Whatever broke at iterates whose products overflow broke because they had run away.
        fault = jnp.where((fault != Fault.NONE) & _overflows(state), int(Fault.DIVERGED), fault).astype(jnp.int32)
        good = fault == Fault.NONE
        return Chunk(
            state=problem.place.kept(_tree.where(good, state, at.state)),
            steps=at.steps + jnp.where(good, 1, 0),
            fault=fault,
            counts=at.counts + _tree.where(good, jax.tree.map(jnp.int32, info.counts), none),
            wasted=at.wasted + _tree.where(good, none, jax.tree.map(jnp.int32, info.counts)),
            info=_tree.where(good | (at.steps == 0), info, at.info),  # of the last good step, if there was one
        )

    _, shapes = jax.eval_shape(traced_step, problem, solver, state, key)
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = Chunk(state, jnp.int32(0), jnp.int32(Fault.NONE), none, none, blank)

    def more(at: Chunk) -> Array:
        done = (at.steps > 0) & goal.reached(at.info) if solver.looks_ahead else jnp.asarray(False)
        return (at.steps < steps) & (at.fault == Fault.NONE) & (at.counts.total < calls) & ~done

    return jax.lax.while_loop(more, body, start)


# For states that nobody else holds: the new one takes the place of the old one, rather than lying beside it.
advance_in_place = _compile.jit(advance.function, donate=(2,))


def _overflows(state: PyTree) -> Array:
    leaves = [leaf for leaf in jax.tree.leaves((state.x, state.y)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.any(
        jnp.stack([jnp.any(~(jnp.abs(leaf) < float(jnp.finfo(leaf.dtype).max) ** _OVERFLOWS)) for leaf in leaves])
    )


_OVERFLOWS = 0.25  # power of the largest number: products of four such numbers overflow
