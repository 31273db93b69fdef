"""The columns of X: centred, scaled, gathered, and padded to sizes that compiled programs share.

Centring and scaling do not change the model: with u_j = s_j w_j the penalty of w_j is written in u_j, and the
intercept, which has no penalty, absorbs the means. Sparse columns are centred only when they are gathered, or by a
correction of products.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

SMALLEST = 16
SMALLEST_SET = 64  # working sets have 64, 128, 256, ... columns: few programs, each compiled for a second or two
FINE = 8  # sizes per octave, for data that are padded once


class Columns(NamedTuple):
    """X, dense or a SciPy CSC matrix, with the means and scales of its columns."""

    X: Any
    mean: Float[np.ndarray, " features"]
    scale: Float[np.ndarray, " features"]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.X.shape

    def gather(self, which: Int[np.ndarray, " some"], room: int, rows: int) -> Float[np.ndarray, "rows room_and_1"]:
        """The columns `which`, centred and scaled, padded with zeros to `room` columns and `rows` rows, and a column
        of ones."""
        part = self.X[:, which]
        part = part.toarray() if hasattr(part, "toarray") else part
        made = np.zeros((rows, room + 1))
        made[: len(part), : len(which)] = (part - self.mean[which]) / self.scale[which]
        made[: len(part), -1] = 1
        return made

    def correlate(self, slopes: Float[np.ndarray, "folds rows outputs"]) -> Float[np.ndarray, "folds features outputs"]:
        """sum_i slope_i z_i of all columns, centred and scaled."""
        folds, rows, outputs = slopes.shape
        flat = np.moveaxis(slopes, 1, 2).reshape(-1, rows)[:, : self.shape[0]]
        products = np.asarray((self.X.T @ flat.T).T) - flat.sum(axis=1)[:, None] * self.mean
        return np.moveaxis((products / self.scale).reshape(folds, outputs, -1), 1, 2)


def columns(X: Any, weights: Float[np.ndarray, " rows"], units: Int[np.ndarray, " features"] | None) -> Columns:
    """Weighted means and scales. Columns of the same unit, if given, share one scale, since the norm of a group weights
    its coefficients equally.
    """
    share = weights / weights.sum()
    mean = np.asarray(share @ X).ravel()
    if hasattr(X, "tocsc"):
        X = X.tocsc()
        square = np.asarray(share @ X.multiply(X)).ravel() - mean**2
        size = np.asarray(abs(X).max(axis=0).todense()).ravel()
    else:
        square = share @ (X - mean) ** 2
        size = np.abs(X).max(axis=0)
    # A column that is constant up to rounding carries no information, whatever its scale.
    constant = square <= (10 * np.finfo(float).eps * size) ** 2
    scale = np.sqrt(np.where(constant, 1.0, square))
    if units is not None:
        largest = np.zeros(units.max() + 1)
        np.maximum.at(largest, units, np.where(constant, 0.0, scale))
        scale = np.where(largest[units] > 0, largest[units], 1.0)
    return Columns(X, mean, np.where(constant & (units is None), np.maximum(size, 1.0), scale))


class Rotated(NamedTuple):
    """Orthogonal columns that span the row space of X: a ridge penalty is invariant to rotations of w."""

    columns: Columns
    back: Float[np.ndarray, "features rank"]

    def restore(self, u: Float[np.ndarray, "folds rank outputs"]) -> Float[np.ndarray, "folds features outputs"]:
        """w from the coefficients of the rotated columns."""
        return np.einsum("pr,fro->fpo", self.back, u)


def rotated(found: Columns) -> Rotated:
    """X - mean = U S V': X is replaced by the columns U S, each with its own scale, and w = V u."""
    dense = found.X.toarray() if hasattr(found.X, "toarray") else found.X
    U, S, Vt = np.linalg.svd(dense - found.mean, full_matrices=False)
    kept = S[0] * max(dense.shape) * np.finfo(float).eps < S if S.size and S[0] > 0 else np.zeros(len(S), bool)
    if not kept.any():
        kept[:1] = True
    spread = np.where(S > 0, S, 1.0)[kept] / np.sqrt(len(dense))
    return Rotated(Columns(U[:, kept] * S[kept], np.zeros(kept.sum()), spread), Vt[kept].T)


def padded(size: int) -> int:
    """A size to pad to, so that programs are shared: a small power of two, or eight sizes per octave above."""
    if size <= SMALLEST:
        return SMALLEST
    octave = 2 ** (size - 1).bit_length() // 2
    step = max(octave // FINE, 1) if size > SMALLEST_SET else octave
    return -(-size // step) * step


def roomy(size: int) -> int:
    """The padded size of a working set that may grow."""
    room = SMALLEST_SET
    while room < size:
        room *= 2
    return room
