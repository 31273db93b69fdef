"""The interface of every outer solver."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from proxbi._module import Module
from proxbi._tree import Scalar
from proxbi.linear import LinearInfo
from proxbi.problem import Counts, Problem


class Info(eqx.Module):
    """What one step reports: nothing here is needed by the next step."""

    stationarity: Scalar
    """How far the x that the step *started from* is from stationary: an estimate of dist(0, d(Phi + h)(x))."""
    lower_residual: Scalar
    """|grad_y g(x, y)| where the hypergradient was taken."""
    linear: LinearInfo | None
    """The outcome of the adjoint solve, where there was one."""
    counts: Counts


class Solver(Module):
    """An outer solver: `init` makes a state that has `x` and `y`, `step` moves it. Both pure, so `jit` and `vmap`
    apply.
    """

    @abstractmethod
    def init(self, problem: Problem, x: Any, y: Any) -> Any:
        """The state before the first step: a pytree with fields `x` and `y`, and what the next step needs."""

    @abstractmethod
    def step(self, problem: Problem, state: Any, key: PRNGKeyArray) -> tuple[Any, Info]:
        """One outer iteration. Deterministic solvers ignore the key."""
