r"""From the scores of learners to belief about the class of a row.

Each learner l has a score s_l(t | u) for every class t of row u, made without the label of u. They are
blended on one scale,

    p(t | u) = softmax_t( sigma_t sum_l beta_l s_l(t | u) + bias_t ),      b = (1 - DOUBT) p + DOUBT / K,

so that the logarithms of beta and sigma and the biases are few numbers, the *calibration*. A learner of noisy labels is
blurred, by an amount that depends on the noise, and leans towards classes that get too many labels: beta and bias undo
both.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize

DOUBT = 0.01
"""The share of rows for which even a confident belief is assumed to be wrong."""
TINY = 1e-300
SHARPNESS_SD, BIAS_SD, CLASS_SD = 0.7, 0.5, 0.3
"""Standard deviations of the prior of the calibration: the centre may be off by a factor of two, a class by e^.5 in its
odds, and by e^.3 in its sharpness."""
FIXED_SD = 1e-3
"""For what stays fixed: the sharpness of a class, if there are only few or doubtful labels to estimate it from."""
VAGUE_SD = 1.0
"""Of the sharpness, if only its usual value is known."""
NEWTON_STEPS = 60
"""In all fits: there are few numbers."""


class Labels(NamedTuple):
    """Labels as given."""

    given: Int[np.ndarray, " rows"]
    groups: Int[np.ndarray, " rows"]
    repeats: Float[np.ndarray, " rows"]
    """How often each row counts."""
    decided: Int[np.ndarray, " rows"] | None = None
    """The class that a person decided on, having seen the label; -1 for rows that nobody decided."""

    def take(self, rows: np.ndarray) -> "Labels":
        """The labels of some rows."""
        decided = None if self.decided is None else self.decided[rows]
        return Labels(self.given[rows], self.groups[rows], self.repeats[rows], decided)

    @property
    def truth(self) -> Int[np.ndarray, " rows"]:
        """The class decided on, or the label."""
        return self.given if self.decided is None else np.where(self.decided >= 0, self.decided, self.given)

    def possible(self, classes: int) -> Float[np.ndarray, "rows classes"]:
        """1 for each class that the row may have: all of them, or the one decided on."""
        every = np.ones((len(self.given), classes))
        if self.decided is not None:
            known = self.decided >= 0
            every[known] = np.eye(classes)[self.decided[known]]
        return every


class Calibration(NamedTuple):
    """From scores to belief."""

    sharpness: Float[np.ndarray, " learners"]
    """log beta."""
    bias: Float[np.ndarray, " classes"]
    by_class: Float[np.ndarray, " classes"]
    """log sigma."""

    @classmethod
    def of(cls, sharpness: list[float], classes: int) -> "Calibration":
        """All classes alike."""
        return cls(np.array(sharpness), np.zeros(classes), np.zeros(classes))

    def belief(self, scores: "Scores") -> Float[np.ndarray, "rows classes"]:
        """b of each row."""
        return (1 - DOUBT) * self.softmax(scores) + DOUBT / len(self.bias)

    def softmax(self, scores: "Scores", offset: "Offset" = 0.0) -> Float[np.ndarray, "rows classes"]:
        """p of each row; with an offset, given the label as well."""
        blend = sum(np.exp(log) * each for log, each in zip(self.sharpness, scores, strict=True))
        logits = self.bias + np.exp(self.by_class) * blend + offset
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


Scores = list[Float[np.ndarray, "rows classes"]]
"""The scores of each learner."""
Offset = Float[np.ndarray, "rows classes"] | float
"""Added to the logits: the evidence of the label for the class of a row that was reviewed because of it."""


def calibrate(
    scores: Scores,
    targets: Float[np.ndarray, "rows classes"],
    prior: Calibration,
    sharpness_sd: float = SHARPNESS_SD,
    class_sd: float = FIXED_SD,
    start: Calibration | None = None,
    offset: Offset = 0.0,
) -> Calibration:
    """The calibration under which the targets, the probabilities of each row's classes times how often it counts, are
    most likely; with the prior as the centre of a normal one, and an offset of the logits.
    """
    learners = len(scores)
    centre = np.concatenate(prior)
    spread = _spread(prior, sharpness_sd, class_sd)
    totals = targets.sum(axis=1, keepdims=True)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        now = _unpacked(x, learners)
        p = now.softmax(scores, offset)
        slope = targets - p * totals  # of sum(targets log p), in the logits
        scaled = slope * np.exp(now.by_class)
        parts = [np.exp(log) * np.sum(scaled * each, axis=0) for log, each in zip(now.sharpness, scores, strict=True)]
        gradient = np.concatenate([[part.sum() for part in parts], slope.sum(axis=0), np.sum(parts, axis=0)])
        far = (x - centre) / spread
        return float(np.sum(far**2) / 2 - np.sum(targets * np.log(p + TINY))), far / spread - gradient

    x0 = np.concatenate(start or prior)
    found = minimize(loss, x0, jac=True, method="L-BFGS-B", options={"maxiter": NEWTON_STEPS}).x
    return _unpacked(found, learners)


def uncertainty(
    calibration: Calibration, scores: Scores, repeats: Float[np.ndarray, " trusted"], offset: Offset = 0.0
) -> Float[np.ndarray, "numbers numbers"]:
    """The covariance of a calibration given the labels of these rows (Laplace): the inverse of the information in them
    and in the prior.
    """
    p, scale = calibration.softmax(scores, offset), np.exp(calibration.by_class)
    effects = [np.exp(log) * scale * each for log, each in zip(calibration.sharpness, scores, strict=True)]
    units = np.eye(p.shape[1])
    blend = np.sum(effects, axis=0)
    slopes = np.stack([*effects, *(np.broadcast_to(row, p.shape) for row in units), *(blend * row for row in units)])
    centred = slopes - np.sum(slopes * p, axis=2, keepdims=True)
    information = np.einsum("aik,bik,ik,i->ab", centred, centred, p, repeats, optimize=True)
    return np.linalg.inv(information + np.diag(_spread(calibration, SHARPNESS_SD, FIXED_SD) ** -2.0))


def log_prior(calibration: Calibration, usual: Calibration) -> float:
    """The log prior of the sharpness, up to a constant: much blur, which explains any labels, is unlikely."""
    return -float(np.sum((calibration.sharpness - usual.sharpness) ** 2)) / (2 * VAGUE_SD**2)


def moved(calibration: Calibration, by: Float[np.ndarray, " numbers"]) -> Calibration:
    """The calibration with something added to all of its numbers."""
    return _unpacked(np.concatenate(calibration) + by, len(calibration.sharpness))


def _unpacked(numbers: Float[np.ndarray, " numbers"], learners: int) -> Calibration:
    sharpness, rest = numbers[:learners], numbers[learners:]
    return Calibration(sharpness, rest[: len(rest) // 2], rest[len(rest) // 2 :])


def _spread(calibration: Calibration, sharpness_sd: float, class_sd: float) -> Float[np.ndarray, " numbers"]:
    return np.repeat([sharpness_sd, BIAS_SD, class_sd], [len(part) for part in calibration])


def without_noise(belief: Float[np.ndarray, "rows classes"], labels: Labels) -> Float[np.ndarray, " rows"]:
    """The log-likelihood of each label if none is wrong, or of the class decided on."""
    return labels.repeats * np.log(belief[np.arange(len(belief)), labels.truth])
