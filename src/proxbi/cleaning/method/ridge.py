r"""Weighted ridge regression of one-hot labels, or of probabilities, on features, and its scores for each row left out.

    Y = A^-1 sum_i w_i phi_i e_i',     A = sum_i w_i phi_i phi_i' + ridge I                                       (fit)

Without row i, A loses w_i phi_i phi_i', and by the Sherman-Morrison formula the score of row i becomes

    (s_i - l_i e_i) / (1 - l_i),     s_i = Y' phi_i,     l_i = w_i phi_i' A^-1 phi_i                     (leave one out)

so one Cholesky factor of A is enough to judge every row by a fit that has not seen it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from proxbi._tree import Scalar
from proxbi.cleaning.method.kernel import product

LEAST = 1e-3
"""The smallest allowed value of 1 - l_i, the share of the other rows in the score of row i."""


class Fit(NamedTuple):
    """A fit, and its scores of the rows it was fitted to."""

    coefficients: Float[Array, "size classes"]
    scores: Float[Array, "rows classes"]
    """Scores of each row, from the fit without it."""


@partial(jax.jit, static_argnames="classes")
def fit(
    features: Float[Array, "rows size"],
    labels: Int[Array, " rows"] | Float[Array, "rows classes"],
    weights: Float[Array, " rows"],
    penalty: Scalar,
    classes: int,
) -> Fit:
    """The fit with these weights, and e^penalty as ridge; `labels` are classes, or their probabilities.

    >>> features = jnp.array([[1.0], [1.0], [-1.0]], jnp.float32)
    >>> one = fit(features, jnp.array([0, 0, 1]), jnp.ones(3, jnp.float32), jnp.float32(0.0), classes=2)
    >>> two = fit(features[1:], jnp.array([0, 1]), jnp.ones(2, jnp.float32), jnp.float32(0.0), classes=2)
    >>> bool(jnp.allclose(one.scores[0], two.coefficients.T @ features[0]))
    True
    """
    targets = labels if labels.ndim > 1 else jax.nn.one_hot(labels, classes, dtype=features.dtype)
    weighted, identity = features * weights[:, None], jnp.eye(features.shape[1], dtype=features.dtype)
    cholesky = jnp.linalg.cholesky(product(weighted.T, features) + jnp.exp(penalty) * identity)
    # Twice as fast as solving a triangular system for each row.
    inverse = jax.scipy.linalg.solve_triangular(cholesky, identity, lower=True)
    coefficients = product(inverse.T, product(inverse, product(weighted.T, targets)))
    leverage = weights * jnp.sum(product(features, inverse.T) ** 2, axis=1)
    leverage = jnp.minimum(leverage, 1 - LEAST)[:, None]  # below 1 up to rounding
    return Fit(coefficients, (product(features, coefficients) - leverage * targets) / (1 - leverage))
