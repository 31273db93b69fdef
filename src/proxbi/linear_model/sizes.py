r"""The sizes of the coefficients under one penalty for all: a guide to penalties of their own.

If a coefficient has a normal prior of variance s, and its estimate from the data is u with an error of variance e, a
step of the EM algorithm gives s = u^2 + e, and a ridge penalty is proportional to 1 / s. Here u is the value of the
coefficient if it alone had no penalty and the others stayed, so that penalties and units of columns do not distort it,
and e its sampling error. Sizes are log s.

Each fold has its own sizes, from its training rows alone. So how closely penalties follow sizes can be chosen by
cross-validation, as one number.

MacKay, "Bayesian interpolation", Neural Computation 4 (1992), has the full recursion (automatic relevance
determination); Zou, "The adaptive lasso and its oracle properties", JASA 101 (2006), has penalties 1 / |w|^lean.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proxbi._compile import jit
from proxbi.glm.losses import Loss
from proxbi.linear_model.working_set import LowerLevel, Solution


def log_sizes(
    lower: LowerLevel,
    solution: Solution,
    tie: Int[np.ndarray, " units"],
    rows: Float[np.ndarray, " folds"],
    noise: float,
) -> Float[np.ndarray, "folds ties"]:
    """Sizes of the coefficients of X as given, a mean for those that share a penalty; the sizes have mean 0.

    `rows` is the number of rows that each fold is fitted to, `noise` the variance of an observation of curvature 1.
    """
    coef, intercept = lower.coefficients(solution)
    scores = np.stack([np.asarray(lower.columns.X @ w.T) + b for w, b in zip(coef, intercept, strict=True)])
    slopes, curvature = _derivatives(lower.loss, *map(jnp.asarray, (scores, lower.targets, lower.folds.fit)))
    # The columns are scaled: all of them have nearly the mean curvature of the rows.
    curvature = np.maximum(np.asarray(curvature), np.finfo(float).eps)[:, None]
    alone = solution.u - lower.columns.correlate(np.asarray(slopes)) / curvature
    # Without noise, sizes are those of the coefficients; the floor keeps logarithms finite.
    error = max(noise, np.finfo(float).tiny ** 0.5) / (rows[:, None, None] * curvature)
    variance = np.mean((alone**2 + error) / lower.columns.scale[:, None] ** 2, axis=2)
    shared = tie[lower.units]
    logs = np.log([np.bincount(shared, one) / np.bincount(shared) for one in variance])
    return logs - logs.mean(axis=1, keepdims=True)


@jit
def _derivatives(loss: Loss, scores: Array, targets: Array, weights: Array) -> tuple[Array, Array]:
    """w l' of each row, and the mean of l'', of each fold."""
    slopes = jax.vmap(lambda s, w: w[:, None] * loss.slope(s, targets))(scores, weights)
    return slopes, jax.vmap(lambda s, w: jnp.diag(loss.total_curvature(s, targets, w)))(scores, weights)
