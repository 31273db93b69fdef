r"""Which rows should a person decide next? Those whose classes would teach most about all others.

What is not sure of the other labels is mostly the calibration theta of the beliefs (`calibration.py`): a number for
each learner and each class, known with covariance Sigma. With q_j the quality of label j and h_j the derivative of its
log-odds by theta, the doubt that Sigma leaves about all labels is

    V = sum_j q_j (1 - q_j) h_j' Sigma h_j = tr(H Sigma),     H = sum_j q_j (1 - q_j) h_j h_j',

where labels that are surely right or surely wrong hardly count. The class of row i, once known, adds its Fisher
information J_i to the inverse of Sigma. To first order V falls by

    gain_i = tr(Sigma H Sigma J_i),     J_i = sum_t p(t | i) (g_t - g)(g_t - g)',     g = sum_t p(t | i) g_t,

with g_t the derivative of the logit of class t. A few rows of the largest gain are taken, Sigma is updated, and so on:
the next ones teach what these do not (a design of experiments, I-optimal; Atkinson, Donev and Tobias, Optimum
experimental designs, with SAS, 2007).

Every second row is drawn at random from all: no such model is right everywhere, and hard rows alone would say that
beliefs are vaguer than those of most rows are.

The order depends on the rows and not on their labels. So its rows are a fair sample of rows like them, also for whoever
only says that they are trusted; suspects, which are picked by their labels, are not.
"""

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.method import noise_model
from proxbi.cleaning.method.calibration import Calibration, Labels, Scores, moved
from proxbi.cleaning.method.decision import Decision, Evidence

CANDIDATES, JUDGED = 5000, 1000
"""Rows that are looked at, at most; and labels whose doubt counts."""
TOGETHER, ROUNDS = 5, 40
"""Rows that are taken at a time, and how often: a person decides some hundreds, and the rest keep the last order."""
STEP = 1e-3
"""Of the differences that stand for derivatives by logarithms."""
CERTAIN = 1e-9
"""How near to 0 and 1 a quality gets."""


def review_order(
    decision: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator
) -> Int[np.ndarray, " doubtful"]:
    """The places of all rows that are not trusted, in the order in which to decide them: by gain and at random, in
    turn.
    """
    drawn, best = draw.permutation(evidence.doubtful), _by_gain(decision, scores, evidence, draw)
    in_turn = np.stack([best, drawn], axis=1).ravel()
    return in_turn[np.sort(np.unique(in_turn, return_index=True)[1])]


def _by_gain(
    decision: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator
) -> Int[np.ndarray, " doubtful"]:
    """The same, those of the largest gain first."""
    doubtful = evidence.doubtful
    some = np.sort(draw.permutation(doubtful)[:CANDIDATES])
    ours = [each[some] for each in scores]
    effects, belief = _effects(decision.sharp, ours), decision.sharp.softmax(ours)
    numbers = len(scores) + evidence.classes
    covariance = decision.covariance[:numbers, :numbers]
    doubt = _doubt(decision, scores, evidence, draw)
    left, taken = np.ones(len(some), bool), list[int]()
    gain = np.zeros(len(some))
    for _ in range(min(ROUNDS, len(some) // TOGETHER)):
        gain = np.where(left, _gains(covariance @ doubt @ covariance, effects, belief), -np.inf)
        best = np.argsort(-gain, kind="stable")[:TOGETHER]
        left[best] = False
        taken += best.tolist()
        covariance = np.linalg.inv(np.linalg.inv(covariance) + _information(effects[:, best], belief[best]))
    rest = np.flatnonzero(left)
    rest = rest[np.argsort(-gain[rest], kind="stable")]
    return np.concatenate([some[np.array(taken, np.int64)], some[rest], np.setdiff1d(doubtful, some)])


def _effects(calibration: Calibration, scores: Scores) -> Float[np.ndarray, "learners rows classes"]:
    """The derivative of every logit by the logarithm of each learner's sharpness. That by a bias is 1 or 0."""
    scale = np.exp(calibration.by_class)
    return np.stack([np.exp(log) * scale * each for log, each in zip(calibration.sharpness, scores, strict=True)])


def _doubt(
    decision: Decision, scores: Scores, evidence: Evidence, draw: np.random.Generator
) -> Float[np.ndarray, "numbers numbers"]:
    """H, by some of the labels."""
    some = np.sort(draw.permutation(evidence.doubtful)[:JUDGED])
    few, labels, sharp = [each[some] for each in scores], evidence.labels.take(some), decision.sharp
    here = _log_odds(decision, sharp, few, labels)
    every = np.eye(len(decision.covariance))[: len(scores) + evidence.classes]
    nearby = [moved(sharp, STEP * one) for one in every]
    slopes = np.stack([(_log_odds(decision, one, few, labels) - here) / STEP for one in nearby])
    quality = 1 / (1 + np.exp(-here))
    return (slopes * quality * (1 - quality)) @ slopes.T


def _log_odds(
    decision: Decision, calibration: Calibration, scores: Scores, labels: Labels
) -> Float[np.ndarray, " some"]:
    """Of the quality of each label, with the noise as it was found."""
    quality = noise_model.judge(decision.noise, calibration.belief(scores), labels).quality
    quality = np.clip(quality, CERTAIN, 1 - CERTAIN)
    return np.log(quality) - np.log(1 - quality)


def _gains(
    matrix: Float[np.ndarray, "numbers numbers"],
    effects: Float[np.ndarray, "learners rows classes"],
    belief: Float[np.ndarray, "rows classes"],
) -> Float[np.ndarray, " rows"]:
    """tr(matrix J_i) of each row: the mean of g_t' matrix g_t, less that of the mean g."""
    learners = len(effects)
    both = np.einsum("lm,lit,mit->it", matrix[:learners, :learners], effects, effects, optimize=True)
    cross = np.einsum("lt,lit->it", matrix[:learners, learners:], effects)
    mean = np.concatenate([np.einsum("lit,it->li", effects, belief), belief.T])
    squares = both + 2 * cross + np.diag(matrix)[learners:]
    return np.sum(belief * squares, axis=1) - np.einsum("ni,nm,mi->i", mean, matrix, mean, optimize=True)


def _information(
    effects: Float[np.ndarray, "learners rows classes"], belief: Float[np.ndarray, "rows classes"]
) -> Float[np.ndarray, "numbers numbers"]:
    """The sum of J_i over some rows."""
    rows, classes = belief.shape
    units = np.broadcast_to(np.eye(classes)[:, None], (classes, rows, classes))
    slopes = np.concatenate([effects, units])
    centred = slopes - np.einsum("nit,it->ni", slopes, belief)[:, :, None]
    return np.einsum("nit,mit,it->nm", centred, centred, belief, optimize=True)
