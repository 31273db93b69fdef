"""Learners beside the kernel regression; their scores are blended with its scores where they add information.

Scores are comparable because each is computed without the label of its row. The score of a random forest is the
logarithm of the share of trees that vote for a class, among the trees grown without the row (out of bag): one forest
scores all of its rows. The score of the user's model is the logarithm of its probabilities, which must be out of fold.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.method.calibration import Calibration, Labels, calibrate, without_noise
from proxbi.cleaning.method.table import Table

FLOOR = 0.02
"""Added to probabilities, divided among the classes: a unanimous vote of a hundred trees is not certainty."""
TREES, MOST_ROWS = 100, 8000
"""The maximal number of rows for a forest of all rows; with more, it is grown on a sample."""
SAMPLE = 4000
"""The size of that sample."""
TOO_MANY = 30_000
"""With more rows there is no forest: scoring a million rows would take longer than everything else."""
KERNEL, CHANCES = float(np.log(5.0)), float(np.log(0.7))
"""The usual log sharpness of scores of the kernel regression and of logarithms of probabilities."""
GAIN = 0.01
"""The mean gain in log-likelihood per label that a learner grown on a sample must bring to be used for all rows."""


class Learner(NamedTuple):
    """Scores of the fitted rows, and a function that scores others."""

    fitted: Float[np.ndarray, "fitted classes"]
    others: Callable[[Table], Float[np.ndarray, "rows classes"]]
    usual: float
    """Log sharpness."""


def brought(table: Table, fit: Int[np.ndarray, " fit"]) -> Learner:
    """The user's own model, from its probabilities of all rows; NaN for rows without any."""
    return Learner(_brought(table)[fit], _brought, CHANCES)


def _brought(table: Table) -> Float[np.ndarray, "rows classes"]:
    chances = table.pred_probs
    assert chances is not None, "asked only where there are probabilities"
    return as_scores(np.where(np.isfinite(chances), chances, 1 / chances.shape[1]))


def forest(
    table: Table, fit: Int[np.ndarray, " fit"], kernel: Float[np.ndarray, "fit classes"], seed: int
) -> Learner | None:
    """A random forest grown on the fitted rows, or on a sample of them; None if it is not worth the time."""
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
    """Logarithms of probabilities, bounded from below."""
    return np.log(chances + FLOOR / chances.shape[1])


def _explained(scores: list[np.ndarray], labels: Labels) -> Float[np.ndarray, " rows"]:
    """The log-likelihood of each given label."""
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
    """The forest keeps its out-of-bag votes only if it has a score to compute; this one is not used."""
    return 0.0
