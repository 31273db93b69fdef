"""The interface of every outer solver."""

from abc import abstractmethod
from enum import IntEnum
from typing import Any, ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi._module import Module
from proxbi._tree import Scalar
from proxbi.linear import LinearInfo
from proxbi.problem import Counts, Problem


class Fault(IntEnum):
    """Why a solver cannot go on, beside what every solver's numbers show (NaN, negative curvature)."""

    NONE = 0
    INFEASIBLE_START = 1
    """h(x0) is infinite or NaN."""
    UNBOUNDED = 2
    """The objective falls without bound."""
    NONSMOOTH = 3
    """No step, however short, decreases the objective as the gradient promises."""
    PRECISION = 4
    """Rounding hides all further progress."""
    LOWER_UNSOLVED = 5
    """The lower problem at x0 could not be solved."""


class Info(eqx.Module):
    """What one step reports: nothing here is needed by the next step."""

    stationarity: Scalar
    """An estimate of dist(0, d(Phi + h)(x)) at the x that the step *started from*, or, if the solver `certifies_end`,
    at the x it leaves."""
    lower_residual: Scalar
    """|grad_y g(x, y)| where the hypergradient was taken."""
    linear: LinearInfo | None
    """The outcome of the adjoint solve, where there was one."""
    counts: Counts
    fault: Int[Array, ""] | int = 0
    """A `Fault`; the state that comes with one is not taken."""


class Solver(Module):
    """An outer solver: `init` makes a state that has `x` and `y`, `step` moves it. Both pure, so `jit` and `vmap`
    apply.
    """

    certifies_end: ClassVar[bool] = False
    """Whether the stationarity a step reports is that of the x it leaves, known without a further step. The states of
    such a solver have `v`, `grad` and `subgradient` beside `x` and `y`."""

    @abstractmethod
    def init(self, problem: Problem, x: Any, y: Any) -> Any:
        """The state before the first step: a pytree with fields `x` and `y`, and what the next step needs."""

    @abstractmethod
    def step(self, problem: Problem, state: Any, key: PRNGKeyArray) -> tuple[Any, Info]:
        """One outer iteration. Deterministic solvers ignore the key."""

    def recheck(self, state: Any) -> Any:
        """For solvers that `certifies_end`: the state whose next step takes the hypergradient at the same x again,
        more accurately.
        """
        raise NotImplementedError


@jax.jit
def traced_step(problem: Problem, solver: Solver, state: PyTree, key: PRNGKeyArray) -> tuple[PyTree, Info]:
    """`solver.step`, of which JAX remembers what it traced: it is asked for three times before a run begins."""
    return solver.step(problem, state, key)
