r"""Which rows should a person decide next? Those whose answers tell most about the other labels.

The uncertainty about the other labels is mostly that of the calibration theta of the class probabilities
(`calibration.py`), whose covariance is Sigma. It makes the qualities q_j of labels rise and fall together. They are
measured by their Brier score sum_j (c_j - q_j)^2, with c_j = 1 if label j is right and 0 if not. Suppose a person
decides row i. Since c_i is 0 or 1, the best predictor of q_j from c_i is linear, and the expected score falls by

    gain_i = sum_j Cov(q_j, c_i)^2 / Var c_i = sum_j Cov(q_j, q_i)^2 / (q_i (1 - q_i)),                        (gain)

without any approximation. A label that is surely wrong is a suspect, but deciding it teaches nothing; nor does a hard
row whose quality depends on nothing that other rows share.

**Covariances.** Let Sigma = L L'. Row k of a matrix A is half of the change of q from theta - L_k to theta + L_k, one
standard deviation to each side. With its columns, Cov(q_j, q_i) = a_j' a_i. The noise is kept fixed: estimating it
again for each k makes A expensive and the order no better.

**One row after another.** An answer is an observation of q_i with variance r_i = q_i (1 - q_i) - a_i' a_i. With it
the covariance of q becomes (as in a Kalman filter) A' P A, where P = I at first and

    P <- P - P a_i a_i' P / (a_i' P a_i + r_i):

so the next rows teach what the earlier ones do not.

The order depends on the labels, so its first rows are not a random sample. If they are given back as trusted, their
earlier labels must be given too, as for suspects (`noise_model.py`, "Decided rows").
"""

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.method import noise_model
from proxbi.cleaning.method.calibration import Labels, Scores, moved
from proxbi.cleaning.method.decision import Decision, Evidence

CANDIDATES = 5000
"""The maximal number of rows that are considered."""
MOST = 200
"""Rows chosen one after another: a person decides some hundreds, and the rest keep the last order."""
LEAST = 0.25
"""The smallest share of the variance of an answer left unexplained by theta: the linear model may explain too much."""
CERTAIN = 1e-6
"""The variance of an answer that is certain beforehand."""


def review_order(
    decision: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator
) -> Int[np.ndarray, " doubtful"]:
    """The indices of all untrusted rows, in the order in which to decide them."""
    some = np.sort(draw.permutation(evidence.doubtful)[:CANDIDATES])
    labels = evidence.labels.take(some)
    quality, effects = _effects(decision, [each[some] for each in scores], labels)
    order = some[most_telling(quality, effects, labels.repeats)]
    return np.concatenate([order, np.setdiff1d(evidence.doubtful, some)])


def most_telling(
    quality: Float[np.ndarray, " rows"],
    effects: Float[np.ndarray, "numbers rows"],
    repeats: Float[np.ndarray, " rows"],
) -> Int[np.ndarray, " rows"]:
    """All rows, the most informative first; `effects` is A, and `repeats` the sample weights.

    >>> quality, effects = np.array([0.5, 0.01, 0.5, 0.5]), np.array([[0.3, 0.01, 0.3, 0.1]])
    >>> most_telling(quality, effects, np.ones(4)).tolist()
    [0, 2, 3, 1]
    """
    variance = quality * (1 - quality)
    unexplained = np.maximum(variance - np.sum(effects**2, axis=0), LEAST * variance) + CERTAIN
    left = effects.copy()  # P A
    through = (effects * repeats) @ effects.T @ left  # A W A' P A: P A weighted by its effect on all labels
    taken, gain = list[int](), np.zeros(len(quality))
    for _ in range(min(MOST, len(quality))):
        seen = np.sum(effects * left, axis=0) + unexplained
        gain = np.sum(left * through, axis=0) / seen
        gain[taken] = -1.0
        best = int(np.argmax(gain))
        taken.append(best)
        along = effects[:, best] @ left / seen[best]
        through -= np.outer(through[:, best], along)
        left -= np.outer(left[:, best], along)
    rest = np.setdiff1d(np.arange(len(quality)), taken)
    return np.concatenate([np.array(taken, np.int64), rest[np.argsort(-gain[rest], kind="stable")]])


def _effects(
    decision: Decision, scores: Scores, labels: Labels
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, "numbers rows"]]:
    """The qualities assuming noise, even if none was detected; and A, for the sharpness of the learners and the
    biases."""
    sharp = decision.sharp
    noise = noise_model.fit_near(decision.noise, sharp.belief(scores), labels)

    def quality(by: Float[np.ndarray, " numbers"]) -> Float[np.ndarray, " rows"]:
        return noise_model.judge(noise, moved(sharp, by).belief(scores), labels).quality

    root = np.linalg.cholesky(decision.covariance)
    steps = root.T[: len(scores) + len(sharp.bias)]
    return quality(np.zeros(len(root))), np.stack([(quality(step) - quality(-step)) / 2 for step in steps])
