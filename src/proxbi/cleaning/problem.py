r"""Data hyper-cleaning, the paper's experiment: one weight for each training row, chosen so that the weighted fit does
well on trusted rows.

upper   f(x, W) = mean_j CE(W z_j, t_j)                                  over the trusted rows
lower   g(x, W) = mean_i sigma(x_i) CE(W z_i, t_i) + ridge |W|^2         over the training rows
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from proxbi._tree import Scalar
from proxbi.datasets import Labelled
from proxbi.problem import Problem
from proxbi.regularizers import Regularizer, Zero

Data = dict[str, Any]


def hyper_cleaning(train: Labelled, trusted: Labelled, ridge: float, regularizer: Regularizer | None = None) -> Problem:
    """The problem whose x is one logit of a weight for each training row and whose y is W, classes by features.

    The lower level is `2 * ridge`-strongly convex and `lower_smoothness(train, ridge)`-smooth.
    """
    data = {
        "train": {"features": jnp.asarray(train.features), "labels": jnp.asarray(train.labels)},
        "trusted": {"features": jnp.asarray(trusted.features), "labels": jnp.asarray(trusted.labels)},
        "ridge": jnp.asarray(ridge, train.features.dtype),
    }
    return Problem(_upper, _lower, Zero() if regularizer is None else regularizer, data)


def lower_smoothness(train: Labelled, ridge: float) -> float:
    """A bound on the largest curvature of the lower level: the Hessian of softmax cross-entropy is at most 1/2, and
    weights at most 1.
    """
    return float(0.5 * jnp.linalg.norm(jnp.asarray(train.features), 2) ** 2 / len(train.labels) + 2 * ridge)


def cross_entropy(weights: Float[Array, "classes features"], rows: dict[str, Array]) -> Float[Array, " rows"]:
    """The cross-entropy of each row."""
    return optax.softmax_cross_entropy_with_integer_labels(rows["features"] @ weights.T, rows["labels"])


def _upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(cross_entropy(y, data["trusted"]))


def _lower(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(jax.nn.sigmoid(x) * cross_entropy(y, data["train"])) + data["ridge"] * jnp.sum(y**2)
