"""The interface of every outer solver."""

from abc import abstractmethod
from enum import IntEnum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi._module import Module
from proxbi._tree import Scalar
from proxbi.certificate import Bounds, Certificate
from proxbi.linear import LinearInfo, LinearStatus
from proxbi.problem import Counts, Problem


class Fault(IntEnum):
    """Why a run cannot continue. The `Status` of the same name says what to do."""

    NONE = 0
    DIVERGED = 1
    """An iterate is infinite or NaN."""
    NONFINITE_START = 2
    """f, g or a derivative is infinite or NaN at the start."""
    NEGATIVE_CURVATURE = 3
    """g_yy is not positive definite."""
    ADJOINT_NONFINITE = 4
    """g_yy or f_y is infinite or NaN."""
    INFEASIBLE_START = 5
    """h(x0) is infinite or NaN."""
    LOWER_UNSOLVED = 6
    """The lower problem at x0 could not be solved."""
    FLAT_START = 7
    """The hypergradient at x0 is zero."""
    UNBOUNDED = 8
    """The objective is unbounded below."""
    NONSMOOTH = 9
    """No step, however short, decreases the objective as much as the gradient predicts."""
    PRECISION = 10
    """Rounding hides all further progress."""
    ACTIVE_SET = 11
    """x is where the active set of the lower level changes, and no step to either side lowers the objective."""


class Info(eqx.Module):
    """What one step reports. The next step needs none of it.

    Example: `run`, which returns them.
    """

    stationarity: Scalar
    """An estimate of dist(0, d(Phi + h)(x)) at the x that the step *started from*, or, if the solver `looks_ahead`, at
    the x it leaves."""
    lower_residual: Scalar
    """|grad_y g(x, y)| at the y of the hypergradient."""
    linear: LinearInfo | None
    """The outcome of the adjoint solve, if there was one."""
    counts: Counts
    """The oracle calls of the step."""
    fault: Int[Array, ""] | int = 0
    """A `Fault`; the state of a step with one is not accepted."""
    relative: Scalar | float = float("nan")
    """The stationarity relative to the scale that `rtol` refers to; NaN if the solver has no scale but that at x0."""


class Solver(Module):
    """An outer solver: `init` makes a state with the fields `x` and `y`, and `step` makes the next state. Both are pure
    functions, so `jit` and `vmap` apply.

    Example: `ProxBiO`. How to write one: docs/extending.md.
    """

    @property
    def looks_ahead(self) -> bool:
        """Whether the stationarity that a step reports is that of its new x, so that no further step is needed to know
        it.
        """
        return False

    @property
    def reports_every(self) -> int:
        """Steps between two rows of the history, unless `minimize` gets `every`."""
        return 10

    def under_vmap(self) -> "Solver":
        """The solver for several runs in one program: without the parts that `vmap` would make expensive."""
        return self

    @abstractmethod
    def init(self, problem: Problem, x: Any, y: Any) -> Any:
        """The state before the first step: a pytree with fields `x` and `y`, and what the next step needs."""

    @abstractmethod
    def step(self, problem: Problem, state: Any, key: PRNGKeyArray) -> tuple[Any, Info]:
        """One outer iteration. Deterministic solvers ignore the key."""

    def recheck(self, state: Any) -> Any:
        """The state from which a step evaluates the same x again, more accurately if the solver can."""
        return state

    def certificate(
        self, problem: Problem, before: Any, after: Any, info: Info, bounds: Bounds | None = None
    ) -> Certificate:
        """The certificate of `before.x` from a step that goes from `recheck(before)` to `after`. By default it is the
        stationarity that each step reports for the x it starts from: an estimate, with or without `bounds`.
        """
        linear = None if info.linear is None else info.linear.residual
        broken = (jnp.asarray(info.fault) != Fault.NONE) | ~jnp.isfinite(info.stationarity)
        stationarity = jnp.where(broken, jnp.inf, info.stationarity)
        relative = jnp.asarray(info.relative, stationarity.dtype)
        return Certificate(stationarity, relative, None, info.lower_residual, linear, before.y, info.counts)

    def certify(self, problem: Problem, state: Any, key: PRNGKeyArray, bounds: Bounds | None = None) -> Certificate:
        """The certificate of `state.x`. Its counts are those of computing it."""
        before = self.recheck(state)
        return self.certificate(problem, before, *self.step(problem, before, key), bounds)


@jax.jit
def traced_step(problem: Problem, solver: Solver, state: PyTree, key: PRNGKeyArray) -> tuple[PyTree, Info]:
    """`solver.step`, traced once: a run needs the trace three times, and so does the next run.

    **Arguments:** `problem`, `state` and `key` as for `Solver.step`, and the `solver`.

    Example: `run`, which uses it.
    """
    return solver.step(problem, state, key)


def fault_of(linear: LinearInfo | None, lower_residual: Scalar) -> Int[Array, ""]:
    """The fault for this outcome of an adjoint solve."""
    if linear is None:
        return jnp.int32(Fault.NONE)
    # An adjoint that broke down because y already had is a divergence of the lower solve.
    broken = jnp.where(jnp.isfinite(lower_residual), int(Fault.ADJOINT_NONFINITE), int(Fault.DIVERGED))
    ends = [linear.status == int(LinearStatus.NEGATIVE_CURVATURE), linear.status == int(LinearStatus.NONFINITE)]
    return jnp.select(ends, [int(Fault.NEGATIVE_CURVATURE), broken], int(Fault.NONE)).astype(jnp.int32)
