r"""Data hyper-cleaning, the paper's experiment: one weight for each training row, chosen so that the weighted fit does
well on trusted rows.

upper   f(x, W) = mean_j CE(W z_j, t_j)                                  over the trusted rows
lower   g(x, W) = mean_i sigma(x_i) CE(W z_i, t_i) + ridge |W|^2         over the training rows
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from proxbi.datasets import Labelled
from proxbi.glm import LinearModel, Softmax, linear_model, streamed_model
from proxbi.glm.layouts import Layout
from proxbi.regularizers import Regularizer
from proxbi.rows import RowSource


def hyper_cleaning(
    train: Labelled | RowSource,
    trusted: Labelled,
    ridge: float,
    regularizer: Regularizer | None = None,
    *,
    preconditioned: bool = True,
    layout: Layout | None = None,
) -> LinearModel:
    """The problem whose x is one logit of a weight for each training row and whose y is W, classes by features.

    **Arguments:**

    - `train`: rows whose labels may be wrong, as arrays or a `RowSource` whose blocks are pairs (features, labels):
      these stay on the host (`proxbi.glm.streamed_model`).
    - `trusted`: rows whose labels are right.
    - `ridge`: the ridge of the lower level, which is `2 * ridge`-strongly convex and
      `lower_smoothness(train, ridge)`-smooth.
    - `regularizer`: h.
    - `preconditioned`, `layout`: those of `linear_model`.

    >>> import numpy as np
    >>> from proxbi.datasets import Labelled
    >>> train = Labelled(np.eye(3, dtype=np.float32), np.array([0, 1, 1]))
    >>> problem = hyper_cleaning(train, train.take(slice(0, 2)), ridge=0.01)
    >>> problem.lower.part
    'train'
    """
    if isinstance(train, RowSource):
        if layout is not None:
            raise ValueError(f"layout must not be given for rows on the host, got {layout!r}.")
        return streamed_model(train, trusted, ridge=2 * ridge, regularizer=regularizer, preconditioned=preconditioned)
    return linear_model(
        train,
        trusted,
        "softmax",
        weights=jax.nn.sigmoid,
        ridge=jnp.asarray(2 * ridge, train.features.dtype),
        regularizer=regularizer,
        preconditioned=preconditioned,
        layout=layout,
    )


def lower_smoothness(train: Labelled, ridge: float) -> float:
    """A bound on the largest curvature of the lower level: the Hessian of softmax cross-entropy is at most 1/2, and
    weights at most 1.
    """
    return float(0.5 * jnp.linalg.norm(jnp.asarray(train.features), 2) ** 2 / len(train.labels) + 2 * ridge)


def cross_entropy(weights: Float[Array, "classes features"], rows: dict[str, Array]) -> Float[Array, " rows"]:
    """The cross-entropy of each row."""
    return Softmax().value(rows["features"] @ weights.T, rows["labels"])
