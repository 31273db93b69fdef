r"""How large the coefficients are that one penalty for all leads to: what others of their own may be guessed from.

Where a coefficient has a normal prior of variance s, and the data say that it is u, give or take an error of variance
e, one step of the EM algorithm makes s = u^2 + e, and the penalty, noise / (n s), follows 1 / s. Sizes are log s. A fold
has sizes of its own, which come from the rows that it is fitted to: the rows that it is judged by have no part in them.
So how closely penalties follow sizes can be chosen by cross-validation, as one number.

MacKay, "Bayesian interpolation", Neural Computation 4 (1992), has the full recursion (automatic relevance
determination); Zou, "The adaptive lasso and its oracle properties", JASA 101 (2006), has penalties 1 / |w|^lean.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from proxbi.linear_model.working_set import LowerLevel, Solution


def log_sizes(
    lower: LowerLevel,
    solution: Solution,
    tie: Int[np.ndarray, " units"],
    rows: Float[np.ndarray, " folds"],
    noise: float,
) -> Float[np.ndarray, "folds ties"]:
    """Of the coefficients of X as it is, a mean for those that share a penalty; their own mean is 0.

    `rows` is the number of rows that each fold is fitted to, `noise` the variance of an observation of curvature 1.
    """
    scale = lower.columns.scale[:, None]
    curvature = _curvature(lower, solution)[:, None] + (solution.strengths.square[..., None] / scale**2)
    # Without any noise, sizes are those of the coefficients; the floor keeps logarithms finite.
    error = max(noise, np.finfo(float).tiny**0.5) / (rows[:, None, None] * curvature)
    variance = np.mean((solution.u**2 + error) / scale**2, axis=2)
    shared = tie[lower.units]
    logs = np.log([np.bincount(shared, one) / np.bincount(shared) for one in variance])
    return logs - logs.mean(axis=1, keepdims=True)


def _curvature(lower: LowerLevel, solution: Solution) -> Float[np.ndarray, "folds outputs"]:
    """The mean curvature of the loss, which is that of scaled columns if rows are alike."""
    coef, intercept = lower.coefficients(solution)
    targets = jnp.asarray(lower.targets)
    found = []
    for w, b, weights in zip(coef, intercept, lower.folds.fit, strict=True):
        scores = jnp.asarray(np.asarray(lower.columns.X @ w.T) + b)
        found.append(np.diag(lower.loss.total_curvature(scores, targets, jnp.asarray(weights))))
    return np.maximum(found, np.finfo(float).eps)
