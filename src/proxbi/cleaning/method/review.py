r"""Which rows should a person decide next? Those whose answers say most about all other labels.

What is not sure of the other labels is mostly the calibration theta of the beliefs (`calibration.py`), known with
covariance Sigma. It makes the qualities q_j of labels rise and fall together. The score of all qualities is that of
Brier, sum_j (c_j - q_j)^2, with c_j = 1 if label j is right and 0 if not. Somebody decides row i: c_i is 0 or 1, so the
best guess of q_j by it is linear in it, and the score falls, on average, by

    gain_i = sum_j Cov(q_j, c_i)^2 / Var c_i = sum_j Cov(q_j, q_i)^2 / (q_i (1 - q_i)),                        (gain)

without any approximation. A surely wrong label teaches nothing, though it is a suspect; nor does a hard row whose
quality hangs on nothing that other rows share.

**Covariances.** With Sigma = L L', half of the change of q from theta - L_k to theta + L_k, one standard deviation to
each side, is row k of a matrix A, and Cov(q_j, q_i) = a_j' a_i with its columns. The noise stays as it is: found again
for each k it makes A costly, and the order no better.

**One after another.** An answer is an observation of q_i with variance r_i = q_i (1 - q_i) - a_i' a_i. With it
(Kalman) the covariance of q becomes A' P A, where P = I at first and

    P <- P - P a_i a_i' P / (a_i' P a_i + r_i):

the next rows teach what these do not.

The order depends on the labels, so its rows are no fair sample: whoever gives them back as trusted must say what their
labels were, as for suspects (`noise_model.py`, "Decided rows").
"""

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.method import noise_model
from proxbi.cleaning.method.calibration import Labels, Scores, moved
from proxbi.cleaning.method.decision import Decision, Evidence

CANDIDATES = 5000
"""Rows that are looked at, at most."""
MOST = 200
"""Rows that are taken one after another: a person decides some hundreds, and the rest keep the last order."""
LEAST = 0.25
"""The least share of the variance of an answer that no theta explains: the straight line may explain more than all."""
CERTAIN = 1e-6
"""The variance of an answer that is known before it is given."""


def review_order(
    decision: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator
) -> Int[np.ndarray, " doubtful"]:
    """The places of all rows that are not trusted, in the order in which to decide them."""
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
    """All rows, those first whose answers teach most; `effects` is A, and `repeats` how often each label counts.

    >>> quality, effects = np.array([0.5, 0.01, 0.5, 0.5]), np.array([[0.3, 0.01, 0.3, 0.1]])
    >>> most_telling(quality, effects, np.ones(4)).tolist()
    [0, 2, 3, 1]
    """
    variance = quality * (1 - quality)
    unexplained = np.maximum(variance - np.sum(effects**2, axis=0), LEAST * variance) + CERTAIN
    left = effects.copy()  # P A
    through = (effects * repeats) @ effects.T @ left  # A W A' P A: what of P A the labels together hang on
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
    """The qualities if there is noise, whatever the signs say; and A, by the sharpness of learners and the biases."""
    sharp = decision.sharp
    noise = noise_model.fit_near(decision.noise, sharp.belief(scores), labels)

    def quality(by: Float[np.ndarray, " numbers"]) -> Float[np.ndarray, " rows"]:
        return noise_model.judge(noise, moved(sharp, by).belief(scores), labels).quality

    root = np.linalg.cholesky(decision.covariance)
    steps = root.T[: len(scores) + len(sharp.bias)]
    return quality(np.zeros(len(root))), np.stack([(quality(step) - quality(-step)) / 2 for step in steps])
