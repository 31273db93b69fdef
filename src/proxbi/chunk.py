"""The compiled part of a run: many steps of a solver in one program, with errors as data.

`advance` serves `minimize`: it stops at the last good state. `run` is for `vmap` and stops for nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi import _compile, _tree
from proxbi._tree import Scalar
from proxbi.linear import LinearStatus
from proxbi.problem import Counts, Problem
from proxbi.solvers import Fault, Info, Solver, traced_step


def run(
    problem: Problem, solver: Solver, x0: PyTree, y0: PyTree, *, steps: int, key: PRNGKeyArray | None = None
) -> tuple[PyTree, Info]:
    """`steps` steps from (x0, y0) as one pure function: the last state and the `Info` of every step, stacked.

    For `jit` and `vmap`: over step sizes, starts, data, seeds. It checks nothing and stops for nothing.

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


class Chunk(NamedTuple):
    """The carry of the compiled loop."""

    state: PyTree
    steps: Int[Array, ""]
    fault: Int[Array, ""]
    counts: Counts
    info: Info


HEALTHY, DIVERGED, NEGATIVE_CURVATURE, ADJOINT_NONFINITE = 0, -1, -2, -3
"""The faults that end a chunk, beside a solver's own (`Fault`, positive numbers)."""


@_compile.jit
def advance(
    problem: Problem,
    solver: Solver,
    state: PyTree,
    key: PRNGKeyArray,
    first: Int[Array, ""],
    steps: Int[Array, ""],
    tol: Scalar,
) -> Chunk:
    """Up to `steps` steps from `state`; stops at the last good state when a step breaks down, and at the first one
    that is stationary to `tol` if the solver knows. `steps` and `tol` are dynamic: one program for all.
    """

    def body(at: Chunk) -> Chunk:
        state, info = traced_step(problem, solver, at.state, jax.random.fold_in(key, first + at.steps))
        fault = _fault(state, info)
        good = fault == HEALTHY
        return Chunk(
            state=_tree.where(good, state, at.state),
            steps=at.steps + jnp.where(good, 1, 0),
            fault=fault,
            counts=at.counts + info.counts,
            info=_tree.where(good | (at.steps == 0), info, at.info),  # of the last good step, if there was one
        )

    _, shapes = jax.eval_shape(traced_step, problem, solver, state, key)
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    none = Counts(*[jnp.int32(0)] * len(vars(Counts())))
    start = Chunk(state, jnp.int32(0), jnp.int32(HEALTHY), none, blank)

    def more(at: Chunk) -> Array:
        stationary = (at.steps > 0) & (at.info.stationarity <= tol.astype(at.info.stationarity.dtype))
        done = stationary if solver.certifies_end else jnp.asarray(False)
        return (at.steps < steps) & (at.fault == HEALTHY) & ~done

    return jax.lax.while_loop(more, body, start)


def _fault(state: PyTree, info: Info) -> Int[Array, ""]:
    fault = jnp.where(_tree.all_finite(state), HEALTHY, DIVERGED)
    if info.linear is not None:
        fault = jnp.where(info.linear.status == LinearStatus.NEGATIVE_CURVATURE, NEGATIVE_CURVATURE, fault)
        # An adjoint that broke down because y already had is a divergence of the lower solve.
        broken = jnp.where(jnp.isfinite(info.lower_residual), ADJOINT_NONFINITE, DIVERGED)
        fault = jnp.where(info.linear.status == LinearStatus.NONFINITE, broken, fault)
    # Whatever broke at iterates whose products overflow broke because they had run away.
    fault = jnp.where((fault != HEALTHY) & _overflows(state), DIVERGED, fault)
    return jnp.where(jnp.asarray(info.fault) != Fault.NONE, info.fault, fault).astype(jnp.int32)


def _overflows(state: PyTree) -> Array:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.any(jnp.stack([jnp.any(~(jnp.abs(leaf) < float(jnp.finfo(leaf.dtype).max) ** 0.25)) for leaf in leaves]))
