r"""Weighted ridge regression of one-hot labels on features, and what it says of a row that is left out.

    Y = A^-1 sum_i w_i phi_i e_i',     A = sum_i w_i phi_i phi_i' + ridge I                                       (fit)

Without row i, A loses w_i phi_i phi_i', and by the Sherman-Morrison formula the score of row i becomes

    (s_i - l_i e_i) / (1 - l_i),     s_i = Y' phi_i,     l_i = w_i phi_i' A^-1 phi_i                     (leave one out)

so that one Cholesky factor of A lets every row be judged by a fit that has not seen it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from proxbi._tree import Scalar
from proxbi.cleaning.method.kernel import product

LEAST = 1e-3
"""The least share of a row's score that the other rows are left with."""


class Fit(NamedTuple):
    """A fit and its view of the rows it was made from."""

    coefficients: Float[Array, "size classes"]
    scores: Float[Array, "rows classes"]
    """Of each row, by the fit without it."""


def fit(
    features: Float[Array, "rows size"],
    labels: Int[Array, " rows"],
    weights: Float[Array, " rows"],
    penalty: Scalar,
    classes: int,
) -> Fit:
    """The fit with these weights, and e^penalty as ridge.

    >>> features = jnp.array([[1.0], [1.0], [-1.0]], jnp.float32)
    >>> one = fit(features, jnp.array([0, 0, 1]), jnp.ones(3, jnp.float32), jnp.float32(0.0), classes=2)
    >>> two = fit(features[1:], jnp.array([0, 1]), jnp.ones(2, jnp.float32), jnp.float32(0.0), classes=2)
    >>> bool(jnp.allclose(one.scores[0], two.coefficients.T @ features[0]))
    True
    """
    # Three programs and not one, so that the large arrays of each are free before the next needs its own.
    targets = jax.nn.one_hot(labels, classes, dtype=features.dtype)
    cholesky, moment = _factor(features, targets, weights, penalty)
    coefficients = jax.scipy.linalg.cho_solve((cholesky, True), moment)
    return Fit(coefficients, _left_out(features, targets, weights, cholesky, coefficients))


@jax.jit
def _factor(features: Array, targets: Array, weights: Array, penalty: Scalar) -> tuple[Array, Array]:
    """The Cholesky factor of A, and the sum beside it."""
    weighted = features * weights[:, None]
    gram = product(weighted.T, features) + jnp.exp(penalty) * jnp.eye(features.shape[1], dtype=features.dtype)
    return jnp.linalg.cholesky(gram), product(weighted.T, targets)


@jax.jit
def _left_out(features: Array, targets: Array, weights: Array, cholesky: Array, coefficients: Array) -> Array:
    halves = jax.scipy.linalg.solve_triangular(cholesky, features.T, lower=True)
    leverage = jnp.minimum(weights * jnp.sum(halves**2, axis=0), 1 - LEAST)  # below 1, but for rounding
    return (product(features, coefficients) - leverage[:, None] * targets) / (1 - leverage)[:, None]
