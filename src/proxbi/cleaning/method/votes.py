r"""Votes of several annotators, and the true classes that follow from them.

**Model.** Annotator j votes g for a row of class t with probability pi_j(t, g), independently of the other votes. With
b(t | u) the class probabilities of models that have not seen the votes of row u,

    P(t | u, votes) ~ b(t | u) prod_j pi_j(t, v_uj)                                                    (posterior)

where the product is over those who voted. Without b this is the model of Dawid and Skene (1979).

**Shrinkage.** The full table of an annotator needs hundreds of votes. So there are hierarchical priors,

    wrong votes of j:                        e_j       ~ Beta,       one prior for all annotators,
    wrong votes of j for rows of class t:    e_j(t)    ~ Beta,       mean e_j c_t, c_t the difficulty of class t,
    which wrong one:                         C_j(t, .) ~ Dirichlet,  mean C(t, .), that of all annotators,

    pi_j(t, t) = 1 - e_j(t),     pi_j(t, g) = e_j(t) C_j(t, g).

Each annotator has a strength of the last two priors, in votes: the one under which the counts are most likely
(empirical Bayes). So annotators who behave alike share one table, as do columns that contain the votes of different
people. An annotator who differs gets a table of their own.

**Rates with intervals.** With p_u(t) the posterior without the vote of j itself, a = p_u(v) for the vote v, and
w = sum over t != v of p_u(t) C_j(t, v), the vote has the likelihood

    L(e) ~ (1 - d) (1 - e) + d e,     d = w / (a + w), the doubt about the vote.                                (doubt)

The product over the votes of j is the likelihood of e_j. The mean and the strength of the Beta prior, together h, are
unknown. They are averaged over a grid, weighted by the evidence in the votes of the other annotators,

    P(e_j | all votes) ~ L_j(e_j) sum_h P(e_j | h) P(h | votes of the others),                                  (rates)
    P(h | votes of the others) ~ prod_(i != j) sum_e L_i(e) P(e | h).

This accounts for the uncertainty about the true classes. The expected numbers of right and wrong votes do not: they are
computed from the current rates, so they differ less between annotators than the true numbers do. If they were used as
counts, annotators with few votes would become more alike in each round.

**Trusted rows** calibrate the posterior. People make errors on the same hard rows, and so do learners. The model
assumes independent errors, so it is overconfident. Votes alone cannot show that; rows of known class can. The
posterior is treated as a score and calibrated like the scores of learners (`calibration.py`):

    P'(t | u, votes) ~ e^bias_t P(t | u, votes)^power,                                                        (trust)

by maximum likelihood on the trusted rows, with a normal prior centred at P' = P.

**Another vote**, by an average annotator pi, raises the probability that the consensus is right by

    sum_g max_t P(t) pi(t, g) - max_t P(t) >= 0.                                                            (gain)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import betaln, gammaln, logsumexp, softmax

from proxbi.cleaning.method.calibration import TINY, Calibration, calibrate
from proxbi.cleaning.method.label_noise import estimate_confusion
from proxbi.cleaning.result import AnnotatorNoise, Consensus, Interval

FIRST_RIGHT = 0.7
"""The initial share of right votes: low, so that the first consensus is uncertain where votes differ."""
FIRST_SHARE = 0.01
"""The initial weight of the other rows relative to trusted ones: most annotators may be wrong."""
ROUNDS, SETTLED = 50, 1e-3
"""The maximal number of rounds of expectation maximisation, and the change of the posterior at which it stops."""
STRENGTHS = np.geomspace(1, 10_000, 17)
"""Strengths of a prior, in votes, to choose from."""
CLASS_VOTES = 5.0
"""The strength of the prior that all classes are equally hard, in wrong votes."""
LEAST, MOST = 1e-4, 0.98
"""The bounds of rates of wrong votes: no vote is a proof."""
ROUNDING = 1e-12
"""Smaller gains count as 0."""
FINE, COARSE, MEANS = ((np.arange(points) + 0.5) / points for points in (1000, 100, 50))
"""The rates at which the posterior of a rate is computed, for intervals and for means; and the means of its prior."""
DOUBTS = (1 - np.cos(np.linspace(0, np.pi, 401))) / 2
"""The doubts that are distinguished: densely near 0 and 1, where the likelihood changes most."""


class Votes(NamedTuple):
    """One entry for each vote."""

    row: Int[np.ndarray, " votes"]
    annotator: Int[np.ndarray, " votes"]
    given: Int[np.ndarray, " votes"]
    rows: int
    annotators: int

    @classmethod
    def of(cls, table: Int[np.ndarray, "rows annotators"]) -> "Votes":
        """From a table of classes; -1 for no vote."""
        row, annotator = np.nonzero(table >= 0)
        return cls(row, annotator, table[row, annotator], *table.shape)

    def voted(self) -> Bool[np.ndarray, " rows"]:
        """Which rows have a vote."""
        return np.bincount(self.row, minlength=self.rows) > 0


class Annotators(NamedTuple):
    """How annotators vote."""

    confusion: Float[np.ndarray, "annotators classes classes"]
    """pi_j(t, g)."""
    average: Float[np.ndarray, "classes classes"]
    """The table of all votes together."""

    @classmethod
    def at_first(cls, annotators: int, classes: int) -> "Annotators":
        """The start: all annotators are alike."""
        other = (1 - FIRST_RIGHT) / (classes - 1)
        first = np.full((classes, classes), other) + (FIRST_RIGHT - other) * np.eye(classes)
        return cls(np.tile(first, (annotators, 1, 1)), first)


def log_likelihood(votes: Votes, annotators: Annotators) -> Float[np.ndarray, "rows classes"]:
    """log P(votes of the row | t), 0 for rows without votes."""
    logs = np.log(_of_votes(votes, annotators))
    columns = [np.bincount(votes.row, column, votes.rows) for column in logs.T]
    return np.stack(columns, axis=1)


def posterior(
    belief: Float[np.ndarray, "rows classes"], votes: Votes, annotators: Annotators
) -> Float[np.ndarray, "rows classes"]:
    """P(t | u, votes)."""
    logits = np.log(belief) + log_likelihood(votes, annotators)
    return np.exp(logits - logsumexp(logits, axis=1, keepdims=True))


def estimate(
    votes: Votes,
    shares: Float[np.ndarray, "rows classes"],
    repeats: Float[np.ndarray, " rows"],
    before: Annotators,
) -> Annotators:
    """Estimate the annotators, given the class probabilities, the weight of each row, and the annotators by which the
    probabilities were computed.
    """
    classes = shares.shape[1]
    counts = _counts(votes, shares * repeats[:, None], classes)
    total, right = counts.sum(axis=2), np.einsum("jtt->jt", counts)
    wrong = total - right
    rate = _posterior_of_rates(votes, shares, before, repeats, COARSE) @ COARSE
    harder = (wrong.sum(axis=0) + CLASS_VOTES) / (rate @ total + CLASS_VOTES)
    mean = np.clip(np.outer(rate, harder), LEAST, MOST)
    by_class = _strongest(_of_rates(wrong, right, mean))[:, None]
    rates = np.clip((wrong + by_class * mean) / (total + by_class), LEAST, MOST)
    which = _which_wrong(counts)
    confusion = rates[:, :, None] * which
    confusion[:, np.arange(classes), np.arange(classes)] = 1 - rates
    share = total.sum(axis=1) / total.sum()
    return Annotators(confusion, np.tensordot(share, confusion, 1))


def by_votes_alone(
    votes: Votes,
    classes: int,
    known: Int[np.ndarray, " rows"] | None = None,
    repeats: Float[np.ndarray, " rows"] | None = None,
) -> tuple[Float[np.ndarray, "rows classes"], Annotators]:
    """The posterior without features, and the annotators; `known` contains the true classes of trusted rows, and -1 for
    others. The prior of the classes is uniform. If their frequencies were estimated too, all rows on which annotators
    disagree might end up in one class, which would then be frequent and hard.

    >>> table = np.tile([[0, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0], [-1, 1, 0]], (10, 1))
    >>> shares, annotators = by_votes_alone(Votes.of(table), 2)
    >>> shares.argmax(axis=1)[:6].tolist()  # the third annotator votes at random and is ignored
    [0, 1, 0, 1, 0, 1]
    """
    count = np.ones(votes.rows) if repeats is None else repeats
    annotators = Annotators.at_first(votes.annotators, classes)
    belief = np.full((votes.rows, classes), 1 / classes)
    shares = settled(posterior(belief, votes, annotators), known)
    told = count if known is None or not np.any(known >= 0) else np.where(known >= 0, count, FIRST_SHARE * count)
    for done in range(ROUNDS):
        annotators = estimate(votes, shares, count if done else told, annotators)
        before, shares = shares, settled(posterior(belief, votes, annotators), known)
        if np.abs(shares - before).max() < SETTLED:
            break
    return shares, annotators


class Trust(NamedTuple):
    """The calibration of the posterior."""

    calibration: Calibration

    @classmethod
    def of(
        cls,
        shares: Float[np.ndarray, "rows classes"],
        known: Int[np.ndarray, " rows"],
        repeats: Float[np.ndarray, " rows"],
    ) -> "Trust":
        """Fit it to the rows of known class; `shares` are the posterior without this knowledge."""
        sure, classes = known >= 0, shares.shape[1]
        as_it_is = Calibration.of([0.0], classes)
        if not sure.any():
            return cls(as_it_is)
        return cls(calibrate([_logs(shares[sure])], np.eye(classes)[known[sure]] * repeats[sure, None], as_it_is))

    @property
    def power(self) -> float:
        """The power of the posterior."""
        return float(np.exp(self.calibration.sharpness[0]))

    def __call__(self, shares: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
        """P' of each row."""
        return self.calibration.softmax([_logs(shares)])


def _logs(shares: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    return np.log(shares + TINY)


def settled(
    shares: Float[np.ndarray, "rows classes"], known: Int[np.ndarray, " rows"] | None
) -> Float[np.ndarray, "rows classes"]:
    """The shares, with 0 and 1 for rows of known class."""
    if known is None or not np.any(known >= 0):
        return shares
    return np.where((known >= 0)[:, None], np.eye(shares.shape[1])[known], shares)


def consensus(
    table: Int[np.ndarray, "rows annotators"],
    shares: Float[np.ndarray, "rows classes"],
    annotators: Annotators,
    believed: Float[np.ndarray, "rows classes"] | None = None,
) -> Consensus:
    """The consensus of rows, votes and annotators; `believed` is the posterior as calibrated on trusted rows. The rates
    of annotators use the uncalibrated one: a less confident posterior would explain more votes without errors.
    """
    votes = Votes.of(table)
    rates = annotator_rates(votes, shares, annotators)
    shares = shares if believed is None else believed
    quality = np.full(table.shape, np.nan)
    quality[votes.row, votes.annotator] = shares[votes.row, votes.given]
    numbers = np.bincount(votes.annotator, minlength=votes.annotators)
    confusion = np.where(numbers[:, None, None] > 0, annotators.confusion, np.nan)
    noise = [AnnotatorNoise(int(n), *each) for n, *each in zip(numbers, rates, confusion, strict=True)]
    return Consensus(shares.argmax(axis=1), shares.max(axis=1), quality, noise, gain(shares, annotators.average))


def gain(
    shares: Float[np.ndarray, "rows classes"], average: Float[np.ndarray, "classes classes"]
) -> Float[np.ndarray, " rows"]:
    """The increase of the probability that the consensus is right, if one more person votes.

    >>> gain(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[0.9, 0.1], [0.1, 0.9]])).round(2).tolist()
    [0.4, 0.0]
    """
    after = np.sum([np.max(shares * column, axis=1) for column in average.T], axis=0)
    gained = after - shares.max(axis=1)
    return np.where(gained > ROUNDING, gained, 0.0)


def annotator_rates(votes: Votes, shares: Float[np.ndarray, "rows classes"], annotators: Annotators) -> list[Interval]:
    """The rate of wrong votes of each annotator with its 95 % interval; NaN for those without votes."""
    found = _posterior_of_rates(votes, shares, annotators, np.ones(votes.rows), FINE)
    number = np.bincount(votes.annotator, minlength=votes.annotators)
    return [_interval(each) if n else Interval(np.nan, np.nan, np.nan) for each, n in zip(found, number, strict=True)]


def _interval(mass: Float[np.ndarray, " grid"]) -> Interval:
    ends = FINE + 0.5 / len(FINE)
    low, high = np.interp([0.025, 0.975], np.append(0, np.cumsum(mass)), np.append(0, ends))
    return Interval(float(mass @ FINE), float(low), float(high))


def _posterior_of_rates(
    votes: Votes,
    shares: Float[np.ndarray, "rows classes"],
    annotators: Annotators,
    repeats: Float[np.ndarray, " rows"],
    grid: Float[np.ndarray, " grid"],
) -> Float[np.ndarray, "annotators grid"]:
    """P(e_j | all votes) on a grid: see (rates)."""
    place = np.rint((len(DOUBTS) - 1) / np.pi * np.arccos(1 - 2 * _doubts(votes, shares, annotators))).astype(int)
    cell = votes.annotator * len(DOUBTS) + place
    counts = np.bincount(cell, repeats[votes.row], votes.annotators * len(DOUBTS)).reshape(-1, len(DOUBTS))
    log = counts @ np.log(np.outer(1 - DOUBTS, 1 - grid) + np.outer(DOUBTS, grid))
    likelihood = np.exp(log - log.max(axis=1, keepdims=True))
    wrong, right = (np.outer(STRENGTHS, part).reshape(-1, 1) for part in (MEANS, 1 - MEANS))
    priors = softmax((wrong - 1) * np.log(grid) + (right - 1) * np.log1p(-grid), axis=1)
    evidence = np.log(priors @ likelihood.T + TINY)
    by_others = softmax(evidence.sum(axis=1, keepdims=True) - evidence, axis=0)
    found = (by_others.T @ priors) * likelihood
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _doubts(
    votes: Votes, shares: Float[np.ndarray, "rows classes"], annotators: Annotators
) -> Float[np.ndarray, " votes"]:
    """d of each vote."""
    own = _of_votes(votes, annotators)
    others = shares[votes.row] / own  # the posterior without this vote, up to a factor
    each = np.arange(len(votes.given))
    agree = others[each, votes.given]
    rates = 1 - np.einsum("jtt->jt", annotators.confusion)[votes.annotator]
    wrong = others * own / rates  # p(t) C(t, v)
    wrong[each, votes.given] = 0
    differ = wrong.sum(axis=1)
    return np.asarray(differ / (agree + differ))


def _of_votes(votes: Votes, annotators: Annotators) -> Float[np.ndarray, "votes classes"]:
    """pi_j(t, v) of each vote, for all t."""
    return annotators.confusion.transpose(0, 2, 1)[votes.annotator, votes.given]


def _counts(
    votes: Votes, shares: Float[np.ndarray, "rows classes"], classes: int
) -> Float[np.ndarray, "annotators classes classes"]:
    """The expected number of votes g of annotator j for rows of class t."""
    cell = votes.annotator * classes + votes.given
    columns = [np.bincount(cell, column, votes.annotators * classes) for column in shares[votes.row].T]
    return np.stack(columns, axis=1).reshape(votes.annotators, classes, classes).transpose(0, 2, 1)


def _strongest(evidence: Float[np.ndarray, "strengths annotators"]) -> Float[np.ndarray, " annotators"]:
    """The strength for each annotator under which the counts are most likely. It uses the annotator's own counts and
    the mean of all counts, which decides for annotators with few votes.
    """
    return STRENGTHS[np.argmax(evidence + evidence.mean(axis=1, keepdims=True), axis=0)]


def _of_rates(
    wrong: Float[np.ndarray, "annotators cells"],
    right: Float[np.ndarray, "annotators cells"],
    mean: Float[np.ndarray, "annotators cells"],
) -> Float[np.ndarray, "strengths annotators"]:
    """The evidence for Beta priors with this mean."""
    a, b = (STRENGTHS[:, None, None] * part for part in (mean, 1 - mean))
    return np.sum(betaln(a + wrong, b + right) - betaln(a, b), axis=2)


def _which_wrong(
    counts: Float[np.ndarray, "annotators classes classes"],
) -> Float[np.ndarray, "annotators classes classes"]:
    """C_j(t, g), 0 for g = t."""
    classes = counts.shape[2]
    others = ~np.eye(classes, dtype=bool)
    usual = estimate_confusion(counts.sum(axis=0))
    mean = usual[others].reshape(classes, classes - 1)
    wrong = counts[:, others].reshape(-1, classes, classes - 1)
    total = wrong.sum(axis=2)

    a = STRENGTHS[:, None, None, None] * mean
    whole = STRENGTHS[:, None, None]
    evidence = np.sum(gammaln(whole) - gammaln(whole + total), axis=2)
    evidence = evidence + np.sum(gammaln(a + wrong) - gammaln(a), axis=(2, 3))
    votes = _strongest(evidence)[:, None, None]
    found = np.zeros_like(counts)
    found[:, others] = ((wrong + votes * mean) / (total[:, :, None] + votes)).reshape(len(counts), -1)
    return found
