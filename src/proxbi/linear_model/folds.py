"""Which rows a fold is fitted to, and which it is judged by: as weights, so that all folds have one shape.

The last fold is fitted to all rows. It has no part in the choice of penalties; its coefficients are the answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Folds:
    """Weights of rows, each fold's adding up to 1, and how much the loss of each fold counts."""

    fit: Float[np.ndarray, "folds rows"]
    judge: Float[np.ndarray, "folds rows"]
    importance: Float[np.ndarray, " folds"]

    @property
    def judged(self) -> list[int]:
        """The folds that count."""
        return [int(fold) for fold in np.flatnonzero(self.importance)]

    def mean(self, losses: Float[np.ndarray, " folds"]) -> float:
        """The loss that is cross-validated: the mean over the folds, each counting as much."""
        return float(self.importance @ np.where(self.importance > 0, losses, 0.0))

    def without(self, held_out: int) -> "Folds":
        """The same folds without the rows that this one is judged by. It is fitted to all other rows, now without a
        part in the choice: its loss says what a choice of penalties is worth that never saw these rows.
        """
        rest = self.judge[held_out] == 0
        judge = self.judge * rest
        judge[held_out] = self.judge[held_out]
        importance = self.importance.copy()
        importance[held_out] = 0
        return _scaled(self.fit * rest, judge, importance > 0)


def from_splits(splits: Iterable[tuple[Any, Any]], weights: Float[np.ndarray, " rows"]) -> Folds:
    """From pairs of the rows to fit to and those to judge by; the fold of all rows comes last."""
    parts = [tuple(_chosen(rows, weights) for rows in pair) for pair in splits]
    if not parts:
        raise ValueError("cv gives no split.")
    if any(not fit.any() for fit, _ in parts):
        raise ValueError("cv: a fold has no rows to fit to whose sample_weight is not zero.")
    if not any(judge.any() for _, judge in parts):
        raise ValueError("cv: no fold has rows to judge by whose sample_weight is not zero.")
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
