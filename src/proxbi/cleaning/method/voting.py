r"""All rows, judged by their votes and by learners that have not seen these.

The votes alone give the first class probabilities of each row. Then, in rounds, the learners are fitted to these
probabilities and predict each row from a fit without it, and the posterior of the votes is computed again with this
prediction as prior, which changes the probabilities.

The posterior is computed by expectation maximisation: given the class probabilities, the annotators are estimated
(`votes.py`) and the predictions calibrated (`noise_model.py`); given these, the class probabilities are the posterior.
Nothing is counted twice, since the prediction of a row does not use its own votes. So the votes determine how far
features can be believed, and uninformative features end up as class frequencies. In the end the posterior is
calibrated on trusted rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from proxbi.cleaning.method import learners, scoring
from proxbi.cleaning.method import votes as ballots
from proxbi.cleaning.method.bilevel import Settings
from proxbi.cleaning.method.calibration import VAGUE_SD, Calibration, Scores, calibrate, moved, uncertainty
from proxbi.cleaning.method.decision import DRAWN, DRAWS
from proxbi.cleaning.method.scoring import Fitted, Judged
from proxbi.cleaning.method.table import Table
from proxbi.cleaning.method.votes import Annotators, Trust, Votes
from proxbi.cleaning.method.weightings import Weigh
from proxbi.cleaning.result import Consensus

ROUNDS = 3
"""Rounds of fitting learners: the second gains one percent with one vote per row, and less with more; the third a
tenth of that."""
READINGS = 25
"""The maximal number of rounds of expectation maximisation between two fits."""


class Reading(NamedTuple):
    """The posterior from votes and predictions."""

    shares: Float[np.ndarray, "rows classes"]
    """The posterior of the class of each row."""
    calibration: Calibration
    annotators: Annotators


class Ballot(NamedTuple):
    """The votes of the fitted rows, and what is known about these."""

    votes: Votes
    known: Int[np.ndarray, " rows"]
    """The classes of trusted rows, -1 for others."""
    decided: Bool[np.ndarray, " rows"]
    """The trusted rows that a person decided, having seen the votes."""
    repeats: Float[np.ndarray, " rows"]

    @classmethod
    def of(cls, table: Table, rows: Int[np.ndarray, " some"]) -> "Ballot":
        """The ballot of some rows of a table with votes."""
        assert table.votes is not None
        known = np.where(table.trusted, table.labels, -1)[rows]
        return cls(Votes.of(table.votes[rows]), known, table.decided[rows], table.repeats[rows].astype(np.float64))

    def by_votes_alone(self, classes: int) -> tuple[Float[np.ndarray, "rows classes"], Annotators]:
        """The first probabilities and annotators. Decided rows are treated like all others here: they were picked where
        votes go wrong, and as a sample of the annotators' work they would discredit all of them.
        """
        fair = np.where(self.decided, -1, self.known)
        shares, annotators = ballots.by_votes_alone(self.votes, classes, fair, self.repeats)
        return ballots.settled(shares, self.known), annotators

    def posterior(self, belief: Float[np.ndarray, "rows classes"], annotators: Annotators) -> np.ndarray:
        """The posterior of the class of each row."""
        return ballots.settled(ballots.posterior(belief, self.votes, annotators), self.known)

    def reading(
        self, scores: Scores, shares: Float[np.ndarray, "rows classes"], annotators: Annotators, usual: Calibration
    ) -> Reading:
        """The posterior, from the class probabilities and annotators so far and the scores of learners."""
        calibration = usual
        for _ in range(READINGS):
            targets = shares * self.repeats[:, None]
            calibration = calibrate(scores, targets, usual, VAGUE_SD, start=calibration)
            annotators = ballots.estimate(self.votes, shares, self.repeats, annotators)
            before, shares = shares, self.posterior(calibration.belief(scores), annotators)
            if np.abs(shares - before).max() < ballots.SETTLED:
                break
        return Reading(shares, calibration, annotators)


class Learned(NamedTuple):
    """Learners fitted to class probabilities."""

    coefficients: Array
    """Coefficients of the kernel regression."""
    others: list[learners.Learner]
    scores: Scores
    """Scores of the fitted rows, by all learners."""


def judge_votes(
    table: Table, settings: Settings, bandwidth: float, wanted: Weigh | None, draw: np.random.Generator
) -> tuple[Judged, Consensus]:
    """Judge all rows; the quality of a row is that of its label in the table."""
    assert table.votes is not None
    fitted = scoring.fit_rows(table, settings, bandwidth, draw)
    fit, seed = fitted.fit, int(draw.integers(2**31))
    weights = scoring.wanted_weights(wanted, table, fitted, settings) if wanted else np.ones(len(fit))
    ballot = Ballot.of(table, fit)
    shares, annotators = ballot.by_votes_alone(table.classes)
    readings = []
    for _ in range(ROUNDS):
        learned = _learn(table, fitted, weights, shares, seed)
        usual = Calibration.of([learners.KERNEL, *(each.usual for each in learned.others)], table.classes)
        readings.append(ballot.reading(learned.scores, shares, annotators, usual))
        shares, _, annotators = readings[-1]
    found = readings[-1]
    plain = ballots.posterior(found.calibration.belief(learned.scores), ballot.votes, found.annotators)
    trust = Trust.of(plain, ballot.known, ballot.repeats)

    as_read = _judge_rest(table, fitted, learned, found)
    everywhere = ballots.settled(trust(as_read), np.where(table.trusted, table.labels, -1))
    each = np.arange(len(table.labels))
    # Votes say nothing about a row without any: its label is the most likely class.
    judged_label = np.where(table.voted, table.labels, everywhere.argmax(axis=1))
    quality = everywhere[each, judged_label]
    elsewhere = everywhere.copy()
    elsewhere[each, judged_label] = -1
    weight = np.where(table.voted, quality, 0.0)
    weight[fit] = np.minimum(weights, weight[fit]) if wanted else weight[fit]
    weight[table.trusted] = 1
    some = np.sort(draw.permutation(np.flatnonzero(ballot.known < 0))[:DRAWN])
    given = table.labels[fit[some]]
    consensus = ballots.consensus(table.votes, as_read, found.annotators, everywhere)
    judged = Judged(
        weight=weight,
        quality=quality,
        other=elsewhere.argmax(axis=1),
        some=fit[some],
        drawn=np.stack([trust(drawn)[some, given] for drawn in _drawn(ballot, learned.scores, found, draw)]),
        otherwise=np.stack([trust(reading.shares)[some, given] for reading in readings[:-1]]),
        noisy=True,
        informed=True,
        temperature=_temperature(learned.scores[0], found, ballot),
        fitted=len(fit),
        review=consensus.next_votes[~table.trusted[consensus.next_votes]],
    )
    return judged, consensus


def _learn(
    table: Table,
    fitted: Fitted,
    weights: Float[np.ndarray, " fit"],
    shares: Float[np.ndarray, "fit classes"],
    seed: int,
) -> Learned:
    """Fit all learners: the regression to the class probabilities, a forest to the most likely class."""
    fit = fitted.fit
    coefficients, kernel = fitted.regress(weights, fitted.rows.features.shape[1], shares)
    labels, repeats = table.labels.copy(), table.repeats.copy()
    labels[fit], repeats[fit] = shares.argmax(axis=1), table.repeats[fit] * shares.max(axis=1)
    others = [] if table.pred_probs is None else [learners.brought(table, fit)]
    grown = learners.forest(table._replace(labels=labels, repeats=repeats), fit, kernel, seed)
    others += [] if grown is None else [grown]
    return Learned(coefficients, others, [kernel, *(each.fitted for each in others)])


def _judge_rest(table: Table, fitted: Fitted, learned: Learned, found: Reading) -> Float[np.ndarray, "rows classes"]:
    """The posterior of all rows, including those that were not fitted."""
    shares = np.zeros((len(table.labels), table.classes))
    for some, scores in scoring.all_scores(table, fitted, learned.coefficients, learned.others, learned.scores):
        belief = found.calibration.belief(scores)
        shares[some] = Ballot.of(table, some).posterior(belief, found.annotators)
    return shares


def _drawn(
    ballot: Ballot, scores: Scores, found: Reading, draw: np.random.Generator
) -> Iterator[Float[np.ndarray, "fit classes"]]:
    """The posterior under calibrations drawn from their posterior, with the matching annotators. A row informs the
    calibration as far as its class is known.
    """
    told = ballot.repeats * found.shares.max(axis=1)
    root = np.linalg.cholesky(uncertainty(found.calibration, scores, told))
    for _ in range(DRAWS):
        belief = moved(found.calibration, root @ draw.standard_normal(len(root))).belief(scores)
        shares = ballot.posterior(belief, found.annotators)
        yield ballot.posterior(belief, ballots.estimate(ballot.votes, shares, ballot.repeats, found.annotators))


def _temperature(kernel: Float[np.ndarray, "fit classes"], found: Reading, ballot: Ballot) -> float:
    """The temperature of the kernel regression alone, for the probable true classes."""
    usual = Calibration.of([learners.KERNEL], kernel.shape[1])
    targets = found.shares * ballot.repeats[:, None]
    return float(np.exp(-calibrate([kernel], targets, usual, 3.0).sharpness[0]))
