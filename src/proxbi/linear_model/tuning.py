"""From rows and folds to penalties and coefficients: the whole of `fit`, on arrays.

Penalties multiply norms of coefficients and stand beside *mean* losses. So a penalty means the same for a fold and for
all rows, and the penalties that folds choose are those of the final fit.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.glm.losses import Loss
from proxbi.linear_model.design import Columns, Rotated, columns, rotated
from proxbi.linear_model.folds import Folds
from proxbi.linear_model.path import Found, Kind, best_penalty
from proxbi.linear_model.working_set import LowerLevel, Solution

PenaltyName = Literal["ridge", "lasso", "elastic_net", "group_lasso"]
RATIOS: dict[str, tuple[float, ...]] = {
    "ridge": (0.0,),
    "lasso": (1.0,),
    "elastic_net": (0.1, 0.5, 0.9),
    "group_lasso": (1.0,),
}
"""The shares of the norm that are tried; more of them hardly change a cross-validated loss."""


@dataclass(frozen=True)
class Task:
    """What is to be tuned."""

    loss: Loss
    X: Any
    targets: np.ndarray
    outputs: int
    weights: Float[np.ndarray, " rows"]
    folds: Folds
    penalty: PenaltyName
    groups: Int[np.ndarray, " features"] | None

    def lower_level(self) -> tuple[LowerLevel, Rotated | None]:
        """With X rotated, where it has more columns than rows and the penalty is a ridge for all of them."""
        grouped = self.penalty == "group_lasso"
        units = self.units()
        found = columns(self.X, self.weights, units if grouped else None)
        turned = rotated(found) if self.penalty == "ridge" and self.X.shape[1] > self.X.shape[0] else None
        if turned is not None:
            found, units = turned.columns, np.arange(turned.columns.shape[1])
        lower = LowerLevel(self.loss, found, self.targets, self.folds, self.outputs, units, grouped)
        return lower, turned

    def units(self) -> Int[np.ndarray, " features"]:
        """What is penalised as one: groups, or single features."""
        if self.penalty == "group_lasso" and self.groups is not None:
            return self.groups
        return np.arange(self.X.shape[1])

    def kinds(self, units: Int[np.ndarray, " features"]) -> list[Kind]:
        """The ways in which one number becomes the penalties of all units; large groups have larger norms."""
        sizes = np.bincount(units).astype(float)
        return [Kind(ratio, np.sqrt(sizes)) for ratio in RATIOS[self.penalty]]

    def without(self, fold: int) -> "Task":
        """The same without the rows that a fold is judged by."""
        return replace(self, folds=self.folds.without(fold))


class Tuned(NamedTuple):
    """The answer, for each fold; the last one is fitted to all rows."""

    penalty: Float[np.ndarray, " features"]
    ratio: float
    coef: Float[np.ndarray, "folds outputs features"]
    intercept: Float[np.ndarray, "folds outputs"]
    losses: Float[np.ndarray, " folds"]
    loss: float
    history: list[dict[str, Any]]
    violation: float


def one_penalty(task: Task) -> Tuned:
    """One penalty for all coefficients."""
    lower, turned = task.lower_level()
    found = best_penalty(lower, task.kinds(lower.units))
    coef, intercept = _in_units_of_X(lower, turned, found.solution, task)
    return Tuned(
        np.full(task.X.shape[1], np.exp(found.log_penalty)),
        found.kind.ratio,
        coef,
        intercept,
        found.solution.loss,
        found.loss,
        found.history,
        found.solution.violation,
    )


def _in_units_of_X(
    lower: LowerLevel, turned: Rotated | None, solution: Solution, task: Task
) -> tuple[np.ndarray, np.ndarray]:
    coef, intercept = lower.coefficients(solution)
    if turned is None:
        return coef, intercept
    mean = columns(task.X, task.weights, None).mean
    w = np.einsum("pr,for->fop", turned.back, coef)
    return w, intercept - w @ mean
