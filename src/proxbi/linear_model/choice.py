"""How many penalties, and how strongly they are pulled together: decided on rows not used to choose them.

Each fold in turn is held out. All candidates choose their penalties by the other folds, are fitted to all rows but the
held-out ones, and are judged by these. Unlike the cross-validated loss of the penalties themselves, this loss shows how
far the choice of many penalties overfits the rows that it was made on.

Candidates are ordered from few degrees of freedom to many, and a later one is chosen only if it is better by more than
a standard error. Fits of different folds share most of their rows, so the spread over folds underestimates it; the
correction is that of Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52 (2003).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.linear_model.tuning import Task, Tuned, many_penalties, one_penalty

ON_THE_LINE = np.inf
PRECISIONS = (ON_THE_LINE, 10.0, 1.0)
"""Of the prior: log penalties follow the sizes of the coefficients, or are off that line by about 0.3, or by 1."""
LEAST_GAIN = 1e-6  # of the loss: if no penalty is needed, all candidates are equal up to rounding
DEFAULT_PRECISION = ON_THE_LINE  # if no rows are left to choose by
MOST_ENTRIES = 700  # coefficients of a ridge regression, for which "auto" tries several penalties: minutes of work
MOST_OWN = 300  # features, up to which "auto" tries penalties off the line: these were seen to help when they are few

Per = str
Ties = dict[Per, Int[np.ndarray, " units"]]
Losses = dict["Candidate", Float[np.ndarray, " rows"]]


class Candidate(NamedTuple):
    """How many penalties, and the precision of the prior; None is no prior."""

    per: Per
    precision: float | None = None

    def words(self) -> str:
        """In words."""
        if self.per == "all":
            return "one penalty for all features"
        if self.precision is None:
            return f"one penalty for each {self.per}, without a prior"
        if self.precision == ON_THE_LINE:
            return f"one penalty for each {self.per}, by the size of its coefficients"
        return f"one penalty for each {self.per}, by size and with a prior of precision {self.precision:g}"


class Verdict(NamedTuple):
    """The result for a candidate."""

    candidate: Candidate
    loss: float
    """On rows not used in its choice."""
    gain: float
    """The loss of one penalty for all, less this."""
    error: float
    """The standard error of the gain."""


class Choice(NamedTuple):
    """The candidate to use, and why."""

    candidate: Candidate
    reason: str
    verdicts: list[Verdict]


def ties(task: Task, per: Per) -> Ties:
    """For each possible arrangement of several penalties, which units share one."""
    units = int(task.units().max()) + 1
    if task.penalty == "group_lasso":
        return {"group": np.arange(units)} if per != "all" else {}
    found: Ties = {}
    if per in ("auto", "group") and task.groups is not None:
        found["group"] = task.groups
    if per in ("auto", "feature"):
        found["feature"] = np.arange(units)
    return found


def choose(task: Task, per: Per, upper_regularizer: Any) -> Choice:
    """The choices that `per` and `upper_regularizer` leave open."""
    open_ties, note = ties(task, per), ""
    if per == "auto" and task.penalty == "ridge" and task.X.shape[1] * task.outputs > MOST_ENTRIES:
        open_ties, note = {}, f" Others were not tried: there are more than {MOST_ENTRIES} coefficients."
    if not open_ties:
        reason = "One penalty for all features." if note else "One penalty for all features, as was asked for."
        return Choice(Candidate("all"), reason + note, [])
    precisions = PRECISIONS if upper_regularizer == "auto" else (upper_regularizer,)
    if upper_regularizer == "auto" and task.X.shape[1] > MOST_OWN:
        precisions = (ON_THE_LINE,)
    candidates = [Candidate(name, precision) for name in open_ties for precision in precisions]
    if per != "auto" and len(candidates) == 1:
        return Choice(candidates[0], f"{_capital(candidates[0])}, as was asked for.", [])
    if len(task.folds.judged) < 3:
        return _without_evidence(per, open_ties, note)
    return _picked(_judged(task, open_ties, precisions), task, per, note)


def tuned(task: Task, choice: Choice) -> Tuned:
    """The candidate, tuned by all folds and fitted to all rows; from strong priors to the one that was chosen."""
    one = one_penalty(task)
    candidate = choice.candidate
    if candidate.per == "all":
        return one
    stronger = [p for p in PRECISIONS if candidate.precision is not None and p > candidate.precision]
    way = [*stronger, candidate.precision]
    history = list(one.history)
    for found in many_penalties(task, one, ties(task, candidate.per)[candidate.per], way):
        history += found.history
    return found._replace(history=history)


def _judged(task: Task, open_ties: Ties, precisions: tuple[float | None, ...]) -> Losses:
    """The losses of all rows, each by penalties chosen without it."""
    losses: Losses = {}
    for fold in task.folds.judged:
        rows = task.folds.judge[fold] > 0
        for candidate, found in _candidates(task.without(fold), open_ties, precisions):
            losses.setdefault(candidate, np.zeros(len(rows)))[rows] = found.row_losses(task, fold)[rows]
    return losses


def _candidates(task: Task, open_ties: Ties, precisions: tuple[float | None, ...]) -> Iterator[tuple[Candidate, Tuned]]:
    one = one_penalty(task)
    yield Candidate("all"), one
    for per, tie in open_ties.items():
        for precision, found in zip(precisions, many_penalties(task, one, tie, precisions), strict=True):
            yield Candidate(per, precision), found


def _gain(gains: Float[np.ndarray, " rows"], task: Task) -> tuple[float, float]:
    """The mean gain, and its standard error: the larger of those over rows and over folds. Rows may be alike (several
    of one sample), and all rows of a fold are judged by the same coefficients.
    """
    folds = task.folds
    mean = folds.mean(folds.judge @ gains)
    by_fold = (folds.judge @ gains)[folds.judged]
    count = len(by_fold)
    return mean, max(_row_error(gains - mean, task), float(by_fold.std(ddof=1) * np.sqrt(1 / count + 1 / (count - 1))))


def _row_error(gains: Float[np.ndarray, " rows"], task: Task) -> float:
    """The standard error of a mean over rows; a row of weight 2 is two rows."""
    share = task.folds.importance @ task.folds.judge
    return float(np.sqrt(np.sum(share**2 * gains**2 / np.where(task.weights > 0, task.weights, np.inf))))


def _picked(losses: Losses, task: Task, per: Per, note: str) -> Choice:
    """The first of the candidates, unless a later one is better by more than a standard error; and so on from there."""
    verdicts = [_verdict(losses, one, Candidate("all"), task) for one in losses]
    best, *others = [one for one in losses if per == "auto" or one.per != "all"]
    for other in others:
        beside = _verdict(losses, other, best, task)
        if beside.gain > max(beside.error, LEAST_GAIN * beside.loss):
            best = other
    verdict = next(one for one in verdicts if one.candidate == best)
    if best.per == "all":
        why = "nothing else is better by more than a standard error, on rows that had no part in the choice."
    else:
        why = f"on rows that had no part in the choice the loss is {_beside_one(verdict)}."
    return Choice(best, f"{_capital(best)}: {why}{note}", verdicts)


def _verdict(losses: Losses, one: Candidate, base: Candidate, task: Task) -> Verdict:
    share = task.folds.importance @ task.folds.judge
    return Verdict(one, float(share @ losses[one]), *_gain(losses[base] - losses[one], task))


def _beside_one(verdict: Verdict) -> str:
    """The loss, relative to that of one penalty for all."""
    whole = verdict.loss + verdict.gain
    gain, error = (100 * part / whole if whole > 0 else 0.0 for part in (verdict.gain, verdict.error))
    side = "lower" if gain >= 0 else "higher"
    return f"{abs(gain):.2g} % {side} than with one penalty for all (standard error {error:.2g} %)"


def _without_evidence(per: Per, open_ties: Ties, note: str) -> Choice:
    candidate = Candidate("all") if per == "auto" else Candidate(next(iter(open_ties)), DEFAULT_PRECISION)
    reason = f"{_capital(candidate)}: with fewer than three folds no rows are left that have no part in the choice."
    return Choice(candidate, reason + note, [])


def _capital(candidate: Candidate) -> str:
    words = candidate.words()
    return words[0].upper() + words[1:]
