r"""A solver to copy: the smallest complete one.

    x_{k+1} = prox_{beta h}(x_k - beta (f_x - g_xy v_k)),   one gradient step each on y and on v           (single loop)

To add a solver: copy this file, write the rule above in the letters of its paper, fill `State`, `init` and `step`; add
one import to `solvers/__init__.py`; add one row to `tests/cases.py`. The row buys the whole contract suite:
convergence on problems with known solution, jit = eager, vmap = loop, no retracing, pytrees, float32 and float64,
bit-exact resumption, and honest counts.
"""

from typing import NamedTuple

import equinox as eqx
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi.problem import Counts, Problem
from proxbi.solvers._base import Info, Solver


class SkeletonState(NamedTuple):
    """Only what the next step needs. `x` and `y` must be there."""

    x: PyTree
    y: PyTree
    v: PyTree
    subgradient: PyTree


class Skeleton(Solver):
    """The formula, the arguments, a reference. Numbers are arrays (a sweep recompiles nothing), structure is static."""

    step_size: _check.Number = eqx.field(converter=_check.as_float)
    lower_step_size: _check.Number = eqx.field(converter=_check.as_float)

    def __check_init__(self) -> None:
        _check.positive("step_size", self.step_size)
        _check.positive("lower_step_size", self.lower_step_size)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> SkeletonState:
        return SkeletonState(x, y, _tree.zeros_like(y), _tree.zeros_like(x))

    def step(self, problem: Problem, state: SkeletonState, key: PRNGKeyArray) -> tuple[SkeletonState, Info]:
        x, y, v, subgradient = state
        # Touch f and g only through the oracles of `problem`, and say in `Counts` how often.
        lower = problem.grad_lower(x, y)
        upper_x, upper_y = problem.grad_upper(x, y)
        adjoint = _tree.subtract(problem.hvp(x, y)(v), upper_y)
        hypergradient = _tree.subtract(upper_x, problem.cross(x, y)(v))

        forward = _tree.axpy(-self.step_size, hypergradient, x)
        moved = SkeletonState(
            x=problem.regularizer.prox(forward, self.step_size),
            y=_tree.axpy(-self.lower_step_size, lower, y),
            v=_tree.axpy(-self.lower_step_size, adjoint, v),
            subgradient=subgradient,
        )
        moved = moved._replace(subgradient=_tree.scale(1 / self.step_size, _tree.subtract(forward, moved.x)))
        info = Info(
            stationarity=_tree.norm(_tree.axpy(1, subgradient, hypergradient)),
            lower_residual=_tree.norm(lower),
            linear=None,
            counts=Counts(grad_lower=1, grad_upper=1, hvp=1, cross=1, prox=1),
        )
        return moved, info
