"""From rows and folds to penalties and coefficients: the whole of `fit`, on arrays.

Penalties multiply norms of coefficients and are added to *mean* losses. So a penalty means the same for a fold and for
all rows, and the penalties chosen on the folds are used in the final fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from proxbi.glm.losses import Loss, Squared
from proxbi.linear_model.bilevel import log_penalties, solve
from proxbi.linear_model.design import Rotated, columns, padded, rotated
from proxbi.linear_model.folds import Folds
from proxbi.linear_model.path import DECADE, RISE, Kind, best_penalty
from proxbi.linear_model.sizes import log_sizes
from proxbi.linear_model.working_set import LowerLevel, Solution, Strengths

MOST_EXTENSIONS = 3  # of the working set: later ones hardly matter
MOST_DENSE = 5_000  # coefficients of a ridge regression: six folds of their Hessians take a gigabyte
LEANS = (0.5, 1.0, 2.0)  # where the search for a lean starts
SHIFTS = DECADE * np.arange(1.5, -3.0, -0.5)  # of the log penalty there, whose features of size 1 may be few
LEAST_STRENGTH = 1e-12  # of h, if one penalty leaves no loss at all
PenaltyName = Literal["ridge", "lasso", "elastic_net", "group_lasso"]
RATIOS: dict[str, tuple[float, ...]] = {
    "ridge": (0.0,),
    "lasso": (1.0,),
    "elastic_net": (0.1, 0.5, 0.9),
    "group_lasso": (1.0,),
}
"""The shares of the norm to try; more of them hardly change a cross-validated loss."""


@dataclass(frozen=True)
class Task:
    """A tuning problem."""

    loss: Loss
    X: Any
    targets: np.ndarray
    outputs: int
    weights: Float[np.ndarray, " rows"]
    folds: Folds
    penalty: PenaltyName
    groups: Int[np.ndarray, " features"] | None

    def lower_level(self, *, rotate: bool) -> tuple[LowerLevel, Rotated | None]:
        """With `rotate`, X is rotated if it has more columns than rows and the penalty is a ridge."""
        grouped = self.penalty == "group_lasso"
        units = self.units()
        found = columns(self.X, self.weights, units if grouped else None)
        wide = self.X.shape[1] > self.X.shape[0]
        turned = rotated(found) if rotate and wide and self.penalty == "ridge" else None
        if turned is not None:
            found, units = turned.columns, np.arange(turned.columns.shape[1])
        lower = LowerLevel(self.loss, found, self.targets, self.folds, self.outputs, units, grouped)
        return lower, turned

    def require_room(self, per: str) -> None:
        """Raise an error for a ridge regression that is too large: its matrices are dense, without any zeros."""
        rows, features = self.X.shape
        size = self.outputs * (min(rows, features) if per in ("all", "auto") else features)
        if self.penalty == "ridge" and size > MOST_DENSE:
            raise ValueError(
                f"X has too many columns for penalty='ridge' with per={per!r}: {size} coefficients, of {MOST_DENSE} at "
                "most. Use penalty='lasso', whose cost follows the coefficients that are not zero."
            )

    def units(self) -> Int[np.ndarray, " features"]:
        """The units of a penalty: groups, or single features."""
        if self.penalty == "group_lasso" and self.groups is not None:
            return self.groups
        return np.arange(self.X.shape[1])

    def kinds(self, units: Int[np.ndarray, " features"]) -> list[Kind]:
        """How one number becomes the penalties of all units; large groups have larger norms."""
        sizes = np.bincount(units).astype(float)
        return [Kind(ratio, np.sqrt(sizes)) for ratio in RATIOS[self.penalty]]

    def without(self, fold: int) -> "Task":
        """The same without the validation rows of a fold."""
        return replace(self, folds=self.folds.without(fold))


class Tuned(NamedTuple):
    """The result for each fold; the last one is fitted to all rows."""

    penalty: Float[np.ndarray, " features"]
    ratio: float
    coef: Float[np.ndarray, "folds outputs features"]
    intercept: Float[np.ndarray, "folds outputs"]
    losses: Float[np.ndarray, " folds"]
    loss: float
    history: list[dict[str, Any]]
    violation: float

    def row_losses(self, task: Task, fold: int) -> Float[np.ndarray, " rows"]:
        """The losses of all rows, by the coefficients of one fold."""
        scores = np.asarray(task.X @ self.coef[fold].T) + self.intercept[fold]
        return np.asarray(task.loss.value(jnp.asarray(scores), jnp.asarray(task.targets)))


def one_penalty(task: Task) -> Tuned:
    """One penalty for all coefficients."""
    lower, turned = task.lower_level(rotate=True)
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


def many_penalties(
    task: Task, one: Tuned, tie: Int[np.ndarray, " units"], precisions: Sequence[float | None]
) -> Iterator[Tuned]:
    """A penalty for each value of `tie`, from one penalty for all: for each precision of the prior, each from the
    solution of the one before. None is no prior.

    Under the prior, log penalties scatter around a line, all - lean size, with variance 1 / precision; an infinite
    precision leaves only the line. Added to a mean of n losses, each of which is (up to a constant) a negative
    log-likelihood of noise of variance s2, it has the strength precision * s2 / n. The losses at one penalty estimate
    s2; those of classes are likelihoods, and s2 is 1.
    """
    lower, _ = task.lower_level(rotate=False)
    kind = Kind(one.ratio, task.kinds(lower.units)[0].weight)
    noise = 2 * one.loss if isinstance(task.loss, Squared) else 1.0
    solution = lower.solve(kind.strengths(one.penalty[0], lower.units))
    rows = (task.folds.fit > 0) @ task.weights
    sizes = log_sizes(lower, solution, tie, rows, noise)
    sizes = np.pad(sizes, [(0, 0), (0, padded(sizes.shape[1]) - sizes.shape[1])])
    tuning = _Tuning(lower, kind, tie, sizes)
    at = At({"all": np.log(one.penalty[0])}, solution)
    if any(precision is not None for precision in precisions):
        at = tuning.along_the_line(at)
    for precision in precisions:
        if precision != np.inf and "own" not in at.x:
            at = At(at.x | {"own": np.zeros(sizes.shape[1])}, at.solution)
        strength = None if precision is None else max(precision * noise / task.weights.sum(), LEAST_STRENGTH)
        at, status = tuning.descend(at, strength)
        coef, intercept = lower.coefficients(at.solution)
        loss = lower.folds.mean(at.solution.loss)
        each = tuning.penalties(at.x)[-1, lower.units]
        row: dict[str, Any] = {"penalty": float(np.exp(np.log(each).mean())), "l1_ratio": one.ratio, "loss": loss}
        row |= {"precision": precision, "status": status}
        yield Tuned(each, one.ratio, coef, intercept, at.solution.loss, loss, [row], at.solution.violation)


class At(NamedTuple):
    """Penalties, and their coefficients."""

    x: dict[str, Any]
    solution: Solution


class _Tuning(NamedTuple):
    """How x becomes penalties, and the search for it."""

    lower: LowerLevel
    kind: Kind
    tie: Int[np.ndarray, " units"]
    sizes: Float[np.ndarray, "folds ties"]

    def penalties(self, x: dict[str, Any]) -> Float[np.ndarray, "folds units"]:
        """The penalty of each unit in each fold."""
        return np.exp(np.asarray(log_penalties(x, self.sizes))[:, self.tie])

    def solve(self, x: dict[str, Any], start: Solution) -> At:
        """The coefficients at x."""
        return At(x, self.lower.solve(self.kind.strengths(self.penalties(x), self.lower.units), start))

    def loss(self, at: At) -> float:
        """The cross-validated loss."""
        return self.lower.folds.mean(at.solution.loss)

    def along_the_line(self, one: At) -> At:
        """The best of a few leans: the loss may have several minima, and the one at 0 is the worst of them."""
        best = At(one.x | {"lean": np.float64(0.0)}, one.solution)
        for lean in LEANS:
            at, least = best, np.inf
            for shift in SHIFTS:
                at = self.solve({"all": one.x["all"] + shift, "lean": np.float64(lean)}, at.solution)
                loss = self.loss(at)
                best = at if loss < self.loss(best) else best
                if loss > RISE * least:
                    break
                least = min(least, loss)
        return self.solve(best.x, best.solution)  # again, so that its columns are the working set

    def descend(self, at: At, strength: float | None) -> tuple[At, str]:
        """Penalties by the bilevel problem on the working set; again if that has grown."""
        ones = np.ones(self.lower.columns.shape[1])
        factors = Strengths(self.kind.ratio * self.kind.weight, (1 - self.kind.ratio) * ones)
        for _ in range(MOST_EXTENSIONS):
            work = self.lower.at_work(at.solution, factors, self.tie[self.lower.units], self.sizes)
            x0 = jax.tree.map(jnp.asarray, at.x)
            result = solve(work.data, x0, work.u, strength, self.kind.ratio == 0, self.loss(at))
            at = self.solve({name: np.asarray(part) for name, part in result.x.items()}, at.solution)
            if self.lower.rows is work.data.rows:
                break
        return at, result.status.name


def _in_units_of_X(
    lower: LowerLevel, turned: Rotated | None, solution: Solution, task: Task
) -> tuple[np.ndarray, np.ndarray]:
    coef, intercept = lower.coefficients(solution)
    if turned is None:
        return coef, intercept
    mean = columns(task.X, task.weights, None).mean
    w = np.einsum("pr,for->fop", turned.back, coef)
    return w, intercept - w @ mean
