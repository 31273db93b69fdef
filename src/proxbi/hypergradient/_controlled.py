"""The interface of hypergradients that control their own error, for `AdaptiveProxBiO`."""

from abc import abstractmethod
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _tree
from proxbi._module import Module
from proxbi._tree import Scalar
from proxbi.problem import Counts, Problem


class Outcome(IntEnum):
    """How an evaluation ended."""

    OK = 0
    ROUGH = 1
    """The error is larger than requested, and more work would not help or was not allowed."""
    UNSOLVED = 2
    """No y with a small lower gradient was found, or no v better than zero."""
    NEGATIVE_CURVATURE = 3
    """g_yy is not positive definite."""
    NONFINITE = 4
    """f, g or a derivative of them is NaN or infinite."""


class Evaluation(NamedTuple):
    """The hypergradient at an x, with its error.

    Example: `value_and_hypergradient`, which is made of it.
    """

    y: PyTree
    v: PyTree
    """The adjoint, g_yy v ~ f_y."""
    grad: PyTree
    value: Scalar
    """Phi(x), computed as f - <v, g_y>: its error is of second order in those of y and v."""
    error: Scalar
    """An estimate of |grad - grad Phi(x)|."""
    value_error: Scalar
    """An estimate of |value - Phi(x)|."""
    bias: Scalar
    """A further part of the error of grad, which does not depend on `accuracy` and is similar at nearby points."""
    terms: Scalar
    """|f_x| + |f_x - grad|: the size of the terms that may cancel in grad."""
    lower_residual: Scalar
    """|g_y(x, y)|."""
    adjoint_residual: Scalar
    """|f_y - g_yy v| / |f_y|."""
    outcome: Int[Array, ""]
    """An `Outcome`."""
    counts: Counts
    carry: PyTree
    """For the next evaluation, in addition to y and v: further warm starts, learned curvature, step sizes."""
    margin: Scalar
    """The distance to the next change of the active set of the lower level, as in `Certificate`."""
    saddles: Int[Array, ""]
    """How often y left a direction of negative curvature of g, in this evaluation and those before it."""


class ControlledHypergradient(Module):
    """A hypergradient that iterates until its error is small relative to its norm.

    `AdaptiveProxBiO(hypergradient)` makes a solver without step sizes from any of these.

    Example: `Implicit`. How to write one: docs/extending.md.
    """

    @abstractmethod
    def init(self, problem: Problem, x: PyTree, y: PyTree) -> Evaluation:
        """The state before the first evaluation: y, and zeros (from `unknown`)."""

    @abstractmethod
    def __call__(
        self, problem: Problem, x: PyTree, last: Evaluation, subgradient: PyTree, accuracy: Scalar
    ) -> Evaluation:
        """The evaluation at x, started from `last`, with an error of at most `accuracy` |grad + subgradient|."""


def unknown(x: PyTree, y: PyTree, carry: Any) -> Evaluation:
    """An `Evaluation` in which only y and the carry are known."""
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
    counts = jax.tree.map(jnp.int32, Counts())
    v, grad, none, far = _tree.zeros_like(y), _tree.zeros_like(x), jnp.int32(0), zero + jnp.inf
    return Evaluation(y, v, grad, zero, zero, zero, zero, zero, zero, zero, none, counts, carry, far, none)


def ratio(a: Scalar, b: Scalar, otherwise: float = 0.0) -> Scalar:
    """a / b, or `otherwise` where b is 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), otherwise)
