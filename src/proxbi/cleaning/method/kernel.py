r"""The features for judging labels: a Nystrom map of a Gaussian kernel.

With landmarks z_1..z_D, which are rows of the data, and k(u, v) = exp(-|u - v|^2 / (2 s)),

    phi(u) = L^-1 (k(u, z_1), ..., k(u, z_D))',     L L' = K + jitter I,   K_ij = k(z_i, z_j),

so that <phi(u), phi(v)> is the best approximation of k(u, v) by D kernel functions. The map depends on features only,
not on labels: a row that is a landmark can still be left out of the fit that judges it. On images, a thousand landmarks
are more accurate than four thousand random cosines (Williams and Seeger, Using the Nystrom method to speed up kernel
machines, NIPS 2000).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular

JITTER = 1e-3
"""Added to the diagonal of K, whose entries are at most 1: the smallest that single precision resolves."""


class KernelMap(NamedTuple):
    """The map phi, to be called on rows."""

    center: Float[Array, " columns"]
    landmarks: Float[Array, "landmarks columns"]
    """Centred, to keep the rounding errors of squared distances small."""
    bandwidth: Float[Array, ""]
    """s, a squared length."""
    whitening: Float[Array, "landmarks landmarks"]
    """L^-T."""

    def __call__(self, rows: Float[Array, "rows columns"]) -> Float[Array, "rows landmarks"]:
        """phi of each row."""
        return mapped_rows(self.center, self.landmarks, self.bandwidth, rows, self.whitening)


def choose_landmarks(
    features: Float[np.ndarray, "rows columns"], count: int, draw: np.random.Generator
) -> Float[np.ndarray, "landmarks columns"]:
    """Up to `count` of the rows."""
    return features[np.sort(draw.choice(len(features), landmark_count(len(features), count), replace=False))]


def landmark_count(rows: int, most: int) -> int:
    """`most`, or with fewer rows the largest power of two up to their number: each number is compiled separately."""
    return min(most, 1 << (rows.bit_length() - 1))


def typical_distance(rows: Float[np.ndarray, "rows columns"]) -> float:
    """The median squared distance of two different rows: the unit of bandwidths.

    >>> typical_distance(np.array([[0.0], [0.0], [2.0]], np.float32))
    4.0
    """
    some = rows[:1000].astype(np.float64) - rows[:1000].mean(axis=0)
    squares = np.sum(some**2, axis=1)
    apart = (squares[:, None] + squares[None, :] - 2 * some @ some.T)[np.triu_indices(len(some), 1)]
    apart = apart[apart > 1e-9 * squares.max(initial=0)]
    return float(np.median(apart)) if apart.size else 1.0


def kernel_map(landmarks: Float[np.ndarray, "landmarks columns"], bandwidth: float) -> KernelMap:
    """The map with these landmarks.

    >>> phi = kernel_map(np.array([[0.0], [3.0]], np.float32), bandwidth=1.0)
    >>> rows = phi(jnp.array([[0.0], [3.0]], jnp.float32))
    >>> print((rows @ rows.T).round(2))
    [[1.   0.01]
     [0.01 1.  ]]
    """
    center = landmarks.mean(axis=0)
    centred = (landmarks - center).astype(np.float64)
    # In double precision, on the host: K is nearly singular, and JAX may be set to single.
    squares = np.sum(centred**2, axis=1)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * centred @ centred.T, 0)
    factor = np.linalg.cholesky(np.exp(-distances / (2 * bandwidth)) + JITTER * np.eye(len(centred)))
    whitening = solve_triangular(factor, np.eye(len(centred)), lower=True).T
    parts = (center, centred, bandwidth, whitening)
    return KernelMap(*(jnp.asarray(np.asarray(part, np.float32)) for part in parts))


def gaussian(distances: Float[Array, "*shape"], bandwidth: Float[Array, ""] | float) -> Float[Array, "*shape"]:
    """k of two rows, from their squared distance."""
    return jnp.exp(-distances / (2 * bandwidth))


@jax.jit
def squared_distances(
    rows: Float[Array, "rows columns"], others: Float[Array, "others columns"]
) -> Float[Array, "rows others"]:
    """|u - v|^2 for each row and each of the others."""
    rows, others = jnp.asarray(rows, jnp.float32), jnp.asarray(others, jnp.float32)
    squares = jnp.sum(rows**2, axis=1)[:, None] + jnp.sum(others**2, axis=1)[None, :]
    return jnp.maximum(squares - 2 * product(rows, others.T), 0)


def product(left: Float[Array, "..."], right: Float[Array, "..."]) -> Float[Array, "..."]:
    """The matrix product in full single precision, which is not the default on accelerators."""
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def mapped_rows(
    center: Float[Array, " columns"],
    landmarks: Float[Array, "landmarks columns"],
    bandwidth: Float[Array, ""],
    rows: Float[Array, "rows columns"],
    coefficients: Float[Array, "landmarks any"],
) -> Float[Array, "rows any"]:
    """The kernel values of each row with the centred landmarks, times coefficients: phi; or scores directly, which is
    many times cheaper than through phi.
    """
    distances = squared_distances(jnp.asarray(rows, jnp.float32) - center, landmarks)
    return product(gaussian(distances, bandwidth), coefficients)
