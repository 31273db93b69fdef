"""One penalty for all coefficients: a path of solutions, each started at the one before, then a search near the best.

The cross-validated loss of one penalty has kinks where the support of a fold changes, and often several minima. A grid
finds the right one: it runs down from the largest penalty of interest until the loss has clearly risen. Brent's method
then searches between the neighbours of the best penalty of the grid.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar

from proxbi.linear_model.working_set import LowerLevel, Solution, Strengths

DECADE = np.log(10.0)
LASSO_STEP, LASSO_DEPTH = 0.1, 5.0  # decades: as fine as LassoCV's default grid is in 3 decades, and further down
RIDGE_STEP, RIDGE_DEPTH = 0.5, 14.0  # the loss of ridge regression is smooth, and its minimum may be near zero penalty
RIDGE_TOP = 10.0  # times the sum of the variances: all coefficients are nearly 0
RIDGE_BELOW = 6.0  # decades below the variance of the smallest column, which by then has hardly any penalty
ROUNDING = 1e-24  # of the sum of the variances: smaller columns, as after rotation, do not count for this
PATIENCE, RISE = 4, 1.02  # the grid ends after this many penalties without gain and a rise of the loss by this factor
FINER = 4  # steps of a second grid per step of the first: finer than the 100 penalties of LassoCV
FINEST, MOST_LOOKS = 2e-3, 10  # of Brent's method: the accuracy of the log penalty, and the number of solves
NO_PENALTY = 1e-12  # of the scale: the grid for data that need no penalty, such as a constant y


class Kind(NamedTuple):
    """A penalty p_g of each unit g enters as (ratio p_g) weight_g |w_g| + (1 - ratio) p_g w^2 / 2."""

    ratio: float
    weight: Float[np.ndarray, " units"]

    def strengths(self, penalty: Any, units: Int[np.ndarray, " features"]) -> Strengths:
        """From penalties: one for all, one for each unit, or those of each fold."""
        each = np.asarray(penalty, float) * np.ones(len(self.weight))
        return Strengths(self.ratio * each * self.weight, (1 - self.ratio) * each[..., units])


class Found(NamedTuple):
    """The best penalty, its solution in all folds, and all penalties that were tried."""

    kind: Kind
    log_penalty: float
    loss: float
    solution: Solution
    history: list[dict[str, Any]]


def best_penalty(lower: LowerLevel, kinds: list[Kind]) -> Found:
    """The penalty with the smallest cross-validated loss: over all kinds on the grid, then near the best of them."""
    searches = [_Search(lower, kind) for kind in kinds]
    for search in searches:
        search.walk()
    best = min(searches, key=lambda search: search.best[0])
    best.refine()
    loss, log_penalty, solution = best.best
    history = [row for search in searches for row in search.history]
    return Found(best.kind, log_penalty, loss, solution, history)


class _Search:
    def __init__(self, lower: LowerLevel, kind: Kind) -> None:
        self.lower, self.kind = lower, kind
        self.history: list[dict[str, Any]] = []
        self.last: Solution | None = None
        self.best: tuple[float, float, Any] = (np.inf, 0.0, None)

    def walk(self) -> None:
        """Follow the grid."""
        idle = 0
        for log_penalty in self._grid():
            before = self.best[0]
            loss = self._look(log_penalty)
            idle = 0 if loss < before else idle + 1
            if idle >= PATIENCE and loss > RISE * self.best[0] and log_penalty < self._latest():
                break

    def refine(self) -> None:
        """Search between the neighbours of the best penalty of the grid: on a finer grid, then by Brent's method."""
        centre, step = self.best[1], self._step()
        for log_penalty in centre + step * np.linspace(1, -1, 2 * FINER + 1):
            self._look(log_penalty)
        centre, step = self.best[1], step / FINER
        bounds = (centre - step, centre + step)
        options = {"xatol": FINEST, "maxiter": MOST_LOOKS}
        minimize_scalar(self._look, bounds=bounds, method="bounded", options=options)

    def _look(self, log_penalty: float) -> float:
        penalty = float(np.exp(log_penalty))
        self.last = self.lower.solve(self.kind.strengths(penalty, self.lower.units), self.last)
        loss = self.lower.folds.mean(self.last.loss)
        self.history.append({"penalty": penalty, "l1_ratio": self.kind.ratio, "loss": loss})
        if loss < self.best[0]:
            self.best = loss, float(log_penalty), self.last
        return loss

    def _step(self) -> float:
        return DECADE * (RIDGE_STEP if self.kind.ratio == 0 else LASSO_STEP)

    def _latest(self) -> float:
        """The log penalty at which the path may end. Ridge regression may fit a large column long before the small ones
        that matter: the loss rises in between.
        """
        if self.kind.ratio > 0:
            return np.inf
        variances = self.lower.columns.scale**2
        return float(np.log(variances[variances > ROUNDING * variances.sum()].min()))

    def _grid(self) -> Float[np.ndarray, " penalties"]:
        variances = float(np.sum(self.lower.columns.scale**2))
        if self.kind.ratio == 0:
            top = RIDGE_TOP * variances
            depth = max(RIDGE_DEPTH, (np.log(top) - self._latest()) / DECADE + RIDGE_BELOW)
        else:
            largest = self.lower.null().strengths.norm / (self.kind.ratio * self.kind.weight)
            top, depth = max(float(largest.max()), NO_PENALTY * variances**0.5), LASSO_DEPTH
        return np.log(top) - self._step() * np.arange(round(depth * DECADE / self._step()) + 1)
