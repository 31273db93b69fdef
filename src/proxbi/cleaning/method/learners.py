"""Other learners than our kernel regression, whose scores are blended with its own where they tell more.

A score is comparable with the others because it is made without the label of its row. Of a random forest it is the
logarithm of the share of trees that vote for a class, among those that were grown without the row (out of bag): one
forest gives the beliefs about all of its rows. Of the user's model it is the logarithm of its probabilities, which
must be out of fold.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.method.calibration import Calibration, Labels, calibrate, without_noise
from proxbi.cleaning.method.table import Table

FLOOR = 0.02
"""Added to probabilities, shared by the classes: no vote of a hundred trees is worth more than a few votes."""
TREES, MOST_ROWS = 100, 8000
"""Of the forest: more rows are sampled."""
SAMPLE = 4000
"""Rows it is grown on then."""
TOO_MANY = 30_000
"""With more rows there is none: to ask it about a million would take longer than all the rest."""
KERNEL, CHANCES = float(np.log(5.0)), float(np.log(0.7))
"""The usual log sharpness of scores of the kernel regression and of logarithms of probabilities."""
GAIN = 0.01
"""Of the log-likelihood of a label, on average: what a learner that was grown on a sample must add to be asked about
all rows."""


class Learner(NamedTuple):
    """Scores of rows that were fitted, and how to get those of others."""

    fitted: Float[np.ndarray, "fitted classes"]
    others: Callable[[Table], Float[np.ndarray, "rows classes"]]
    usual: float
    """Log sharpness."""


def brought(table: Table, fit: Int[np.ndarray, " fit"]) -> Learner:
    """The user's own model, by its probabilities for all rows; rows that it says nothing about are NaN."""
    return Learner(_brought(table)[fit], _brought, CHANCES)


def _brought(table: Table) -> Float[np.ndarray, "rows classes"]:
    chances = table.pred_probs
    assert chances is not None, "asked only where there are probabilities"
    return as_scores(np.where(np.isfinite(chances), chances, 1 / chances.shape[1]))


def forest(
    table: Table, fit: Int[np.ndarray, " fit"], kernel: Float[np.ndarray, "fit classes"], seed: int
) -> Learner | None:
    """A random forest of the rows that are fitted, or of a sample of them; None where it is not worth the time."""
    if table.size > TOO_MANY or len(fit) < 2 or len(np.unique(table.labels[fit])) < 2:
        return None
    if len(fit) <= MOST_ROWS:
        return _grow(table, fit, fit, seed)
    sample = np.sort(np.random.default_rng(seed).choice(len(fit), SAMPLE, replace=False))
    labels = Labels(table.labels[fit[sample]], np.zeros(SAMPLE, np.int64), table.repeats[fit[sample]].astype(float))
    found = _grow(table, fit[sample], fit[sample], seed)
    alone, both = _explained([kernel[sample]], labels), _explained([kernel[sample], found.fitted], labels)
    if np.mean(both - alone) < GAIN:
        return None
    scores = found.others(table.take(fit))
    scores[sample] = found.fitted
    return found._replace(fitted=scores)


def as_scores(chances: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    """Logarithms of probabilities, none of them far below zero."""
    return np.log(chances + FLOOR / chances.shape[1])


def _explained(scores: list[np.ndarray], labels: Labels) -> Float[np.ndarray, " rows"]:
    """The log-likelihood of each label, as it is given."""
    classes = scores[0].shape[1]
    usual = Calibration.of([KERNEL, CHANCES][: len(scores)], classes)
    found = calibrate(scores, np.eye(classes)[labels.given] * labels.repeats[:, None], usual)
    return without_noise(found.belief(scores), labels)


def _grow(table: Table, grown: np.ndarray, rows: np.ndarray, seed: int) -> Learner:
    from sklearn.ensemble import RandomForestClassifier

    weights = table.repeats[grown]
    trees: Any = RandomForestClassifier(TREES, oob_score=_ignored, n_jobs=-1, random_state=seed % 2**32)
    trees.fit(table.features[grown], table.labels[grown], sample_weight=None if np.all(weights == 1) else weights)

    def spread(chances: np.ndarray) -> np.ndarray:
        every = np.zeros((len(chances), table.classes))
        every[:, trees.classes_] = np.nan_to_num(chances, nan=1 / len(trees.classes_))
        return as_scores(every)

    votes = trees.oob_decision_function_.reshape(len(grown), -1)
    return Learner(spread(votes), lambda rows: spread(trees.predict_proba(rows.features)), CHANCES)


def _ignored(truth: np.ndarray, found: np.ndarray) -> float:
    """The forest's own score, which nobody asks for; its votes are only kept if there is one."""
    return 0.0
