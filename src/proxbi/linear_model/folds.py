"""The training and validation rows of each fold, as weights, so that all folds have the same shape.

The last fold is fitted to all rows. It does not count in the choice of penalties; its coefficients are the result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Folds:
    """Weights of rows, which add up to 1 in each fold, and the weight of the loss of each fold."""

    fit: Float[np.ndarray, "folds rows"]
    judge: Float[np.ndarray, "folds rows"]
    importance: Float[np.ndarray, " folds"]

    @property
    def judged(self) -> list[int]:
        """The folds whose loss counts."""
        return [int(fold) for fold in np.flatnonzero(self.importance)]

    def mean(self, losses: Float[np.ndarray, " folds"]) -> float:
        """The loss that is cross-validated: the mean over the folds, each counting as much."""
        return float(self.importance @ np.where(self.importance > 0, losses, 0.0))

    def without(self, held_out: int) -> "Folds":
        """The same folds without the validation rows of this one. It is fitted to all other rows and no longer counts
        in the choice: its loss measures a choice of penalties that has not seen these rows.
        """
        rest = self.judge[held_out] == 0
        judge = self.judge * rest
        judge[held_out] = self.judge[held_out]
        importance = self.importance.copy()
        importance[held_out] = 0
        return _scaled(self.fit * rest, judge, importance > 0)


def from_splits(splits: Iterable[tuple[Any, Any]], weights: Float[np.ndarray, " rows"]) -> Folds:
    """From pairs of training and validation rows; the fold of all rows comes last."""
    parts = [tuple(_chosen(rows, weights) for rows in pair) for pair in splits]
    if not parts:
        raise ValueError("cv gives no split.")
    if any(not fit.any() for fit, _ in parts):
        raise ValueError("cv: a fold has no training rows of nonzero sample_weight.")
    if not any(judge.any() for _, judge in parts):
        raise ValueError("cv: no fold has validation rows of nonzero sample_weight.")
    fit, judge = (np.array(rows) for rows in zip(*parts, (weights, np.zeros_like(weights)), strict=True))
    return _scaled(fit, judge, np.any(judge, axis=1))


def _chosen(rows: Any, weights: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    chosen = np.zeros_like(weights)
    chosen[rows] = weights[rows]
    return chosen


def _scaled(fit: np.ndarray, judge: np.ndarray, counts: np.ndarray) -> Folds:
    total = judge.sum(axis=1, keepdims=True)
    counts = counts & (total[:, 0] > 0)
    return Folds(
        fit / fit.sum(axis=1, keepdims=True), judge / np.where(total > 0, total, 1), counts / max(counts.sum(), 1)
    )
