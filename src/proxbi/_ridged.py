"""A problem with a ridge term in its lower level: what `Implicit(damping=...)` solves."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.problem import Problem


class Ridged(Problem):
    """g + damping |y|^2 / 2 in the place of g. Made by `ridged`; all oracles are those of `of`, with the term added."""

    of: Problem = eqx.field(kw_only=True)
    damping: Any = eqx.field(kw_only=True)

    def value_upper(self, x: PyTree, y: PyTree) -> Scalar:
        return self.of.value_upper(x, y)

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return self.of.grad_upper(x, y)

    def value_and_grad_upper(self, x: PyTree, y: PyTree) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        return self.of.value_and_grad_upper(x, y)

    def value_lower(self, x: PyTree, y: PyTree) -> Scalar:
        return self._raised(self.of.value_lower(x, y), y)

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        return _tree.axpy(self.damping, y, self.of.grad_lower(x, y))

    def value_and_grad_lower(self, x: PyTree, y: PyTree) -> tuple[Scalar, PyTree]:
        value, gradient = self.of.value_and_grad_lower(x, y)
        return self._raised(value, y), _tree.axpy(self.damping, y, gradient)

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        return self.of.grad_lower_x(x, y)

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        product = self.of.hvp(x, y)
        return lambda v: _tree.axpy(self.damping, v, product(v))

    def preconditioner(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree] | None:
        return self.of.preconditioner(x, y)

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return self.of.cross(x, y)

    def _raised(self, value: Scalar, y: PyTree) -> Scalar:
        return value + 0.5 * self.damping * _tree.dot(y, y).astype(value.dtype)


def ridged(problem: Problem, damping: float | None) -> Problem:
    """The problem with this damping; as it is without."""
    if damping is None:
        return problem
    parts = problem.upper, problem.lower, problem.regularizer, problem.data
    return Ridged(*parts, lower_regularizer=problem.lower_regularizer, of=problem, damping=damping)
