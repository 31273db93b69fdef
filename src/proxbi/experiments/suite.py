"""The problems that solvers are compared on: small, of every kind, and each with a way to *know* how stationary a point
is.

    >>> [name for name in SUITE if name.startswith("E")]
    ['E-100', 'E-1e4']
    >>> case = SUITE["E-100"]()
    >>> case.kind, case.kappa
    ('box', 100.0)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from proxbi import _tree, analytic, datasets
from proxbi._check import Number, as_float
from proxbi._tree import Scalar
from proxbi.analytic import Analytic
from proxbi.cleaning.problem import hyper_cleaning
from proxbi.linear import CG
from proxbi.problem import Problem
from proxbi.regularizers import L1, Box, CappedL1, GroupL2, Regularizer, Simplex
from proxbi.regularizers._base import like
from proxbi.theory.lanczos import lower_spectrum
from proxbi.theory.reference import Exactly, Newton, closed_forms, computed

Data = dict[str, Array]


class Case(NamedTuple):
    """A problem with its start."""

    problem: Problem
    x0: PyTree
    y0: PyTree
    kappa: float
    """The condition number of g_yy: as built, or estimated at the start."""
    kind: str
    """Of h."""
    exactly: Callable[[PyTree, PyTree], Exactly]
    """(x, y) -> y*(x), Phi(x) and grad Phi(x): in closed form, or by solves to rounding level that start at y."""


def _analytic(kind: str, made: Analytic, regularizer: Regularizer | None = None) -> Case:
    """An analytic problem, with its own h or another."""
    h = made.problem.regularizer if regularizer is None else regularizer
    problem = Problem(made.problem.upper, made.problem.lower, h, made.problem.data)
    known = closed_forms(made.solution, made.value, made.gradient)
    return Case(problem, made.x0, made.y0, made.kappa, kind, Partial(_known, known))


def _known(reference: Callable[[PyTree], Exactly], x: PyTree, y: PyTree) -> Exactly:
    return reference(x)


def _numerical(kind: str, problem: Problem, x0: PyTree, y0: PyTree) -> Case:
    """A problem without closed forms."""
    ritz = lower_spectrum(problem, x0, y0)
    return Case(problem, x0, y0, float(ritz.largest / ritz.smallest), kind, Partial(_solved, problem))


@jax.jit
def _solved(problem: Problem, x: PyTree, y: PyTree) -> Exactly:
    to_rounding = CG(steps=2000, tol=1e-14)
    return computed(problem, Newton(to_rounding), y, to_rounding)(x)


# One penalty e^{x_i} for each weight of a logistic regression whose features differ in scale by a factor 10.
def _logistic(rows: int = 200, features: int = 20) -> Case:
    draw = np.random.default_rng(0)
    truth = np.where(np.arange(features) < features // 3, 1.5 * draw.normal(size=features), 0.0)
    design = draw.normal(size=(2 * rows, features)) * np.geomspace(0.3, 3, features)
    labels = np.where(draw.uniform(size=2 * rows) < 1 / (1 + np.exp(-design @ truth)), 1.0, -1.0)
    data = {
        "Z": jnp.asarray(design[:rows]),
        "t": jnp.asarray(labels[:rows]),
        "Z_held_out": jnp.asarray(design[rows:]),
        "t_held_out": jnp.asarray(labels[rows:]),
    }
    problem = Problem(_logistic_upper, _logistic_lower, Box(-8.0, 2.0), data)
    return _numerical("box", problem, jnp.full(features, -3.0), jnp.zeros(features))


def _logistic_upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(jnp.logaddexp(0.0, -data["t_held_out"] * (data["Z_held_out"] @ y)))


def _logistic_lower(x: Array, y: Array, data: Data) -> Scalar:
    loss = jnp.mean(jnp.logaddexp(0.0, -data["t"] * (data["Z"] @ y)))
    return loss + 0.5 * jnp.sum(jnp.exp(x) * y**2)


# How much to trust each of several sources of data, the later ones noisier and the last one wrong: weights on a
# simplex.
def _sources(sources: int = 6, rows: int = 30, features: int = 10) -> Case:
    draw = np.random.default_rng(0)
    truth, design = draw.normal(size=features), draw.normal(size=(sources, rows, features))
    noise = np.linspace(0.1, 2, sources)[:, None] * draw.normal(size=(sources, rows))
    target = design @ truth + noise
    target[-1] += 3 * design[-1, :, 0]
    held_out = draw.normal(size=(rows, features))
    unseen = held_out @ truth + 0.1 * draw.normal(size=rows)
    data = {"Z": design, "t": target, "Z_held_out": held_out, "t_held_out": unseen}
    problem = Problem(_sources_upper, _sources_lower, Simplex(), jax.tree.map(jnp.asarray, data))
    return _numerical("simplex", problem, jnp.full(sources, 1 / sources), jnp.zeros(features))


def _sources_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((data["Z_held_out"] @ y - data["t_held_out"]) ** 2)


def _sources_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum(x * jnp.mean((data["Z"] @ y - data["t"]) ** 2, axis=1)) + 0.005 * jnp.sum(y**2)


# One number to choose: the logarithm of one penalty for all weights.
def _scalar() -> Case:
    made = analytic.ridge_hyperparameters(100.0)
    problem = Problem(made.problem.upper, _scalar_lower, Box(-8.0, 2.0), made.problem.data)
    return _numerical("box", problem, jnp.asarray(1.0), made.y0)


def _scalar_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((data["Z"] @ y - data["t"]) ** 2) + 0.5 * jnp.exp(x) * jnp.sum(y**2)


# Logits in a box: without one, every point at infinity is stationary, and whoever throws all logits there is done.
def _cleaning(train: int = 1000, trusted: int = 300) -> Case:
    rows = datasets.digits()
    rows = rows._replace(features=np.asarray(rows.features, np.float64))
    order = np.random.default_rng(0).permutation(len(rows.labels))
    clean, held_out = rows.take(order[:train]), rows.take(order[train : train + trusted])
    noisy = clean._replace(labels=datasets.symmetric_noise(clean.labels, 0.2, 0))
    problem = hyper_cleaning(noisy, held_out, 1e-2, Box(-5.0, 5.0))
    y0 = jnp.zeros((10, rows.features.shape[1]))
    return _numerical("box", problem, jnp.zeros(train), y0)


SUITE: dict[str, Callable[[], Case]] = {
    "A-2": lambda: _analytic("l1", analytic.spectral_quadratic(2.0)),
    "A-100": lambda: _analytic("l1", analytic.spectral_quadratic(100.0)),
    "A-1e3": lambda: _analytic("l1", analytic.spectral_quadratic(1e3)),
    "A-1e5": lambda: _analytic("l1", analytic.spectral_quadratic(1e5)),
    "A-10-capped": lambda: _analytic("capped l1", analytic.spectral_quadratic(10.0), CappedL1(0.02, 0.5)),
    "A-30-group": lambda: _analytic("group l2", analytic.spectral_quadratic(30.0), GroupL2(0.05, [0] * 5 + [1] * 5)),
    "B-10": lambda: _analytic("none", analytic.kl_dial(10.0)),
    "C-10": lambda: _analytic("l1", analytic.sharp_minimum(10.0)),
    "D-10": lambda: _analytic("negative capped l1", analytic.smooth_nonquadratic(10.0)),
    "D-100-l1": lambda: _analytic("l1", analytic.smooth_nonquadratic(100.0), L1(0.05)),
    "D-1e3-capped": lambda: _analytic("capped l1", analytic.smooth_nonquadratic(1e3), CappedL1(0.05, 2.0)),
    "E-100": lambda: _analytic("box", analytic.ridge_hyperparameters(100.0)),
    "E-1e4": lambda: _analytic("box", analytic.ridge_hyperparameters(1e4)),
    "stiff-30": lambda: _analytic("l1", analytic.stiff_quadratic(30.0)),
    "scalar": _scalar,
    "sources": _sources,
    "logistic": _logistic,
    "cleaning": _cleaning,
}
"""Every case by its name: the letters are those of `proxbi.analytic`, the numbers are kappa."""


def random_start(case: Case, seed: int, spread: float = 1.0) -> Case:
    """`case` started elsewhere: normal noise is added to x0 and y0, and x0 is moved into the domain of h."""
    draw = np.random.default_rng(seed)

    def moved(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf + spread * jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype), tree)

    nearest = case.problem.regularizer.prox(moved(case.x0), 1e-9)  # of an indicator: the projection, whatever the step
    return case._replace(x0=nearest, y0=moved(case.y0))


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
    )


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
        inside = self.regularizer.prox(_tree.scale(1 / self.factor, x), step / like(self.factor, step) ** 2)
        return _tree.scale(self.factor, inside)
