"""The same case started elsewhere, or in other units."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import PyTree

from proxbi import _tree
from proxbi._check import Number, as_float
from proxbi._tree import Scalar
from proxbi.problem import Problem
from proxbi.regularizers import Regularizer
from proxbi.theory.reference import Exactly
from suite.case import Case


def random_start(case: Case, seed: int, spread: float = 1.0) -> Case:
    """`case` started elsewhere: normal noise is added to x0 and y0, which are moved into the domains of h and g."""
    draw = np.random.default_rng(seed)

    def moved(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf + spread * jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), tree)

    nearest = case.problem.regularizer.prox(moved(case.x0), 1e-9)  # of an indicator: the projection, whatever the step
    return case._replace(x0=nearest, y0=case.inside(moved(case.y0)))


class Units(NamedTuple):
    """How many new units make one old unit."""

    f: float = 1.0
    g: float = 1.0
    x: float = 1.0
    y: float = 1.0


def scaled(case: Case, *, f: float = 1.0, g: float = 1.0, x: float = 1.0, y: float = 1.0) -> Case:
    """The same problem in other units: numbers for f (and h), g, x and y are `f`, `g`, `x` and `y` times as large.

    With x' = x * X and so on, f'(x', y') = F f(x'/X, y'/Y), g' = G g(x'/X, y'/Y), h'(x') = F h(x'/X); its solution is
    X times the solution of the old one.

    >>> from suite import SUITE
    >>> case = SUITE["A-2"]()
    >>> large = scaled(case, f=1e3, x=10.0)
    >>> print(large.problem.regularizer.value(large.x0) / case.problem.regularizer.value(case.x0))
    1000.0
    """
    units, old = Units(f, g, x, y), case.problem
    problem = Problem(
        Partial(_in_units, old.upper, units, f),
        Partial(_in_units, old.lower, units, g),
        f * Stretched(old.regularizer, x),
        old.data,
    )
    return case._replace(
        problem=problem,
        x0=_tree.scale(x, case.x0),
        y0=_tree.scale(y, case.y0),
        exactly=Partial(_exactly_in_units, case.exactly, units),
        inside=Partial(_inside_in_units, case.inside, y),
    )


def _inside_in_units(inside: Any, unit: float, y: PyTree) -> PyTree:
    return _tree.scale(unit, inside(_tree.scale(1 / unit, y)))


def _in_units(objective: Any, units: Units, factor: float, x: PyTree, y: PyTree, data: PyTree) -> Scalar:
    value = objective(_tree.scale(1 / units.x, x), _tree.scale(1 / units.y, y), data)
    return jnp.asarray(factor, value.dtype) * value


@jax.jit
def _exactly_in_units(exactly: Any, units: Units, x: PyTree, y: PyTree) -> Exactly:
    solution, value, gradient = exactly(_tree.scale(1 / units.x, x), _tree.scale(1 / units.y, y))
    value = jnp.asarray(units.f, value.dtype) * value
    return Exactly(_tree.scale(units.y, solution), value, _tree.scale(units.f / units.x, gradient))


class Stretched(Regularizer):
    r"""$x \mapsto h(x / c)$: h in units of x that are c times smaller.

    With u = c w, h(u/c) + |u - x|^2 / (2t) = h(w) + c^2 |w - x/c|^2 / (2t): the prox is c times that of h at x/c with
    the step t / c^2.

    >>> from proxbi import L1
    >>> print(Stretched(L1(1.0), 2.0).prox(jnp.array([3.0, -0.25]), 1.0))
    [2.5 0. ]
    """

    regularizer: Regularizer
    factor: Number = eqx.field(converter=as_float)

    @property
    def convex(self) -> bool:
        """As h."""
        return self.regularizer.convex

    @property
    def separable(self) -> bool:
        """As h."""
        return self.regularizer.separable

    def value(self, x: PyTree) -> Scalar:
        """h(x / c)."""
        return self.regularizer.value(_tree.scale(1 / self.factor, x))

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The prox of h, seen from its own units."""
        step = as_float(step)
        inner_step = step / jnp.asarray(self.factor, step.dtype) ** 2
        return _tree.scale(self.factor, self.regularizer.prox(_tree.scale(1 / self.factor, x), inner_step))
