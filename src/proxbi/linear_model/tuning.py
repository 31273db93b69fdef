"""From rows and folds to penalties and coefficients: the whole of `fit`, on arrays.

Penalties multiply norms of coefficients and stand beside *mean* losses. So a penalty means the same for a fold and for
all rows, and the penalties that folds choose are those of the final fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from proxbi.glm.losses import Loss, Squared
from proxbi.linear_model.bilevel import solve
from proxbi.linear_model.design import Rotated, columns, padded, rotated
from proxbi.linear_model.folds import Folds
from proxbi.linear_model.path import Kind, best_penalty
from proxbi.linear_model.working_set import LowerLevel, Solution, Strengths

MOST_EXTENSIONS = 3  # of the columns at work: later ones hardly matter
MOST_DENSE = 5_000  # coefficients of a ridge regression: six folds of their Hessians take a gigabyte
LEAST_STRENGTH = 1e-12  # of h, where one penalty leaves no loss at all
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

    def lower_level(self, *, rotate: bool) -> tuple[LowerLevel, Rotated | None]:
        """If asked to rotate, with X rotated where it has more columns than rows and the penalty is a ridge."""
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
        """Refuse a ridge regression that is too large: its matrices are dense, and nothing of them is zero."""
        rows, features = self.X.shape
        size = self.outputs * (min(rows, features) if per in ("all", "auto") else features)
        if self.penalty == "ridge" and size > MOST_DENSE:
            raise ValueError(
                f"X has too many columns for penalty='ridge' with per={per!r}: {size} coefficients, of {MOST_DENSE} at "
                "most. Use penalty='lasso', whose cost follows the coefficients that are not zero."
            )

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

    def row_losses(self, task: Task, fold: int) -> Float[np.ndarray, " rows"]:
        """Of all rows, by the coefficients of one fold."""
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
    answer to the one before. None is no prior.

    The prior says that log penalties scatter around their mean with variance 1 / precision. Beside a mean of n losses,
    each of which is (up to a constant) a negative log-likelihood of noise of variance s2, it has the strength
    precision * s2 / n. The losses at one penalty estimate s2; those of classes are likelihoods, and s2 is 1.
    """
    lower, _ = task.lower_level(rotate=False)
    kind = Kind(one.ratio, task.kinds(lower.units)[0].weight)
    noise = 2 * one.loss if isinstance(task.loss, Squared) else 1.0
    x = {"all": np.log(one.penalty[0]), "own": np.zeros(padded(int(tie.max()) + 1))}
    solution = lower.solve(kind.strengths(one.penalty[0], lower.units))
    for precision in precisions:
        strength = None if precision is None else max(precision * noise / task.weights.sum(), LEAST_STRENGTH)
        x, solution, status = _descend(lower, kind, tie, x, solution, strength)
        coef, intercept = lower.coefficients(solution)
        loss = lower.folds.mean(solution.loss)
        each = np.exp(x["all"] + x["own"][tie])[lower.units]
        mean = float(np.exp(np.log(each).mean()))
        row = {"penalty": mean, "l1_ratio": one.ratio, "loss": loss, "precision": precision, "status": status}
        yield Tuned(each, one.ratio, coef, intercept, solution.loss, loss, [row], solution.violation)


def _descend(
    lower: LowerLevel, kind: Kind, tie: np.ndarray, x: dict[str, Any], solution: Solution, strength: float | None
) -> tuple[dict[str, Any], Solution, str]:
    """Penalties by the bilevel problem on the columns at work; again where others have come to work."""
    ones = np.ones(lower.columns.shape[1])
    factors = Strengths(kind.ratio * kind.weight, (1 - kind.ratio) * ones)
    for _ in range(MOST_EXTENSIONS):
        work = lower.at_work(solution, factors, tie[lower.units])
        result = solve(work.data, jax.tree.map(jnp.asarray, x), work.u, strength, smooth=kind.ratio == 0)
        x = {name: np.asarray(part) for name, part in result.x.items()}
        penalty = np.exp(x["all"] + x["own"][tie])
        solution = lower.solve(kind.strengths(penalty, lower.units), solution)
        if lower.rows is work.data.rows:
            break
    return x, solution, result.status.name


def _in_units_of_X(
    lower: LowerLevel, turned: Rotated | None, solution: Solution, task: Task
) -> tuple[np.ndarray, np.ndarray]:
    coef, intercept = lower.coefficients(solution)
    if turned is None:
        return coef, intercept
    mean = columns(task.X, task.weights, None).mean
    w = np.einsum("pr,for->fop", turned.back, coef)
    return w, intercept - w @ mean
