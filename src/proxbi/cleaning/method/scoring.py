"""All rows, judged by learners that have not seen their labels.

At most `Table.learn_from` rows are fitted, and each of these is judged by the fit without it. The other rows are scored
by the fit as it is. So a million rows cost little more than thirty thousand.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from proxbi.cleaning.method import learners, ridge
from proxbi.cleaning.method.bilevel import Settings
from proxbi.cleaning.method.calibration import Calibration, Labels, Scores, calibrate, without_noise
from proxbi.cleaning.method.decision import (
    Decision,
    Evidence,
    decide,
    decide_again,
    drawn_qualities,
    other_qualities,
)
from proxbi.cleaning.method.kernel import KernelMap, choose_landmarks, kernel_map, mapped_rows, product
from proxbi.cleaning.method.noise_model import true_classes
from proxbi.cleaning.method.review import review_order
from proxbi.cleaning.method.reweighting import Rows
from proxbi.cleaning.method.table import Table, bucket, padded
from proxbi.cleaning.method.weightings import Task, Weigh

ROUGH = 512
"""Landmarks of a first fit."""
MANY = 8000
"""With more fitted rows, the first fit, which is only used for weights, has fewer landmarks."""
LANDMARKS, FEWER = 1500, 1024
"""Landmarks of the map; fewer if the table is sampled, since each further row costs one kernel value per landmark."""
RIDGES = (0.0, 2.0, 4.0)
"""Added to the log ridge that was solved for, to try larger ones: from the bound up to that of much noise."""
BLOCK = 2048
"""Rows mapped at a time: their kernel values stay in the cache, which is twice as fast."""
EVIDENCE = 20.0


class Scoring(Protocol):
    """Scores rows that were not learned from."""

    def __call__(self, rows: Table) -> Scores: ...


class Scorer(NamedTuple):
    """The learners, to score rows that they have not seen; in NumPy arrays, which can be sent to other processes."""

    center: Float[np.ndarray, " columns"]
    landmarks: Float[np.ndarray, "landmarks columns"]
    bandwidth: Float[np.ndarray, ""]
    coefficients: Float[np.ndarray, "landmarks classes"]
    """Coefficients of the regression for kernel values, that is, whitened."""
    others: tuple[Callable[[Table], Float[np.ndarray, "rows classes"]], ...]

    @classmethod
    def of(cls, phi: KernelMap, coefficients: Array, others: list[learners.Learner]) -> "Scorer":
        """A scorer from the coefficients of the regression and the other learners."""
        parts = (phi.center, phi.landmarks, phi.bandwidth, product(phi.whitening, coefficients))
        center, landmarks, bandwidth, whitened = (np.asarray(part) for part in parts)
        return cls(center, landmarks, bandwidth, whitened, tuple(each.others for each in others))

    def __call__(self, rows: Table) -> Scores:
        """The scores of at most `BLOCK` rows."""
        size = min(BLOCK, bucket(len(rows.labels)))
        mapped = mapped_rows(
            self.center, self.landmarks, self.bandwidth, padded(rows.features, size), self.coefficients
        )
        kernel = np.asarray(mapped)[: len(rows.labels)].astype(np.float64)
        return [kernel, *(ask(rows) for ask in self.others)]


class Found(NamedTuple):
    """The result for each of some rows."""

    weight: Float[np.ndarray, " rows"]
    quality: Float[np.ndarray, " rows"]
    other: Int[np.ndarray, " rows"]
    """The most likely class if the label is wrong."""


class Judge(NamedTuple):
    """Judges rows, also in other processes: rows of the sample get the result found while learning, all others are
    scored by learners that have not seen them.
    """

    scorer: Scoring | None
    """None if nothing was learned: all labels are kept."""
    decision: Decision | None
    places: Int[np.ndarray, " known"]
    """The sorted indices, in the whole table, of the rows that were learned from."""
    known: Found
    """The result for these."""

    def __call__(self, rows: Table, first: int = 0) -> Found:
        """Judge a block of the table; `first` is the index of its first row."""
        count = len(rows.labels)
        weight, quality, other = np.ones(count), np.ones(count), np.zeros(count, np.int64)
        ours = slice(*np.searchsorted(self.places, [first, first + count]))
        seen = self.places[ours] - first
        if self.scorer is not None and self.decision is not None:
            rest = np.setdiff1d(np.arange(count), seen, assume_unique=True)
            for start in range(0, len(rest), BLOCK):
                some = rest[start : start + BLOCK]
                block = rows.take(some)
                verdict = self.decision.verdict(self.scorer(block), _labels(block))
                quality[some], other[some] = verdict.quality, verdict.wrong.argmax(axis=1)
        quality[rows.decided] = 1
        weight[~rows.trusted] = quality[~rows.trusted]
        for values, found in zip((weight, quality, other), self.known, strict=True):
            values[seen] = found[ours]
        return Found(weight, quality, other)


class Judged(NamedTuple):
    """The result for each row of the table."""

    weight: Float[np.ndarray, " rows"]
    quality: Float[np.ndarray, " rows"]
    other: Int[np.ndarray, " rows"]
    """The most likely class if the label is wrong."""
    some: Int[np.ndarray, " some"]
    """Untrusted rows for which the following two are known too."""
    drawn: Float[np.ndarray, "draws some"]
    """Their quality under calibrations drawn from the posterior; empty if nothing was learned."""
    otherwise: Float[np.ndarray, "ways some"]
    """Their quality after the first fit, and under other models."""
    noisy: bool
    """Whether label noise was detected."""
    informed: bool
    """Whether the features are informative about the labels; if not, all labels are kept."""
    temperature: float
    fitted: int
    """The number of fitted rows."""
    review: Int[np.ndarray, " untrusted"]
    """The untrusted rows, in the order in which to decide them."""
    scorer: Scoring | None = None
    decision: Decision | None = None
    """If the table is a sample: how to judge the other rows."""

    def judge(self, places: Int[np.ndarray, " rows"]) -> Judge:
        """The judge of the whole table, from which the rows at these indices were drawn."""
        return Judge(self.scorer, self.decision, places, Found(self.weight, self.quality, self.other))


class Fitted(NamedTuple):
    """The fitted rows, and what is needed to fit them."""

    fit: Int[np.ndarray, " fit"]
    phi: KernelMap
    rows: Rows
    penalty: Array
    classes: int

    def regress_best(
        self, weights: Float[np.ndarray, " fit"], size: int
    ) -> tuple[Array, Float[np.ndarray, "fit classes"]]:
        """The same with the best ridge.

        The ridge was solved for on a sample, with weights that were not yet these: it may be so small that wrong labels
        are reproduced. Some larger ones are tried too, and the one is used whose leave-one-out scores are closest to
        the labels.
        """
        total = (weights * np.asarray(self.rows.repeats)[: len(self.fit)])[:, None]
        labels = np.eye(self.classes)[np.asarray(self.rows.given.labels)[: len(self.fit)]]
        found = [self.regress(weights, size, more_ridge=more) for more in RIDGES]
        return min(found, key=lambda one: float(np.sum(total * (one[1] - labels) ** 2)))

    def regress(
        self,
        weights: Float[np.ndarray, " fit"],
        size: int,
        shares: Float[np.ndarray, "fit classes"] | None = None,
        more_ridge: float = 0.0,
    ) -> tuple[Array, Float[np.ndarray, "fit classes"]]:
        """The coefficients of a fit with these weights on the first `size` features, and the score of each row from the
        fit without it. `shares` are class probabilities, used in place of the labels.
        """
        # L is triangular, so the first columns of phi are the map with the first landmarks alone.
        total = padded(
            np.asarray(self.rows.repeats)[: len(self.fit)] * weights.astype(np.float32), len(self.rows.repeats)
        )
        labels = self.rows.given.labels if shares is None else padded(shares.astype(np.float32), len(total))
        found = ridge.fit(self.rows.features[:, :size], labels, total, self.penalty + more_ridge, self.classes)
        return found.coefficients, np.asarray(found.scores)[: len(self.fit)].astype(np.float64)


Refit = Callable[[Table, Fitted, Judge], tuple[Scoring, Float[np.ndarray, "fit classes"], int]]
"""A fit to more rows than those of this table, with the weights of this judge: a scorer of other rows, the scores of
the fitted ones, and the number of rows that it has."""


def judge_all(
    table: Table,
    settings: Settings,
    bandwidth: float,
    wanted: Weigh | None,
    draw: np.random.Generator,
    refit: Refit | None = None,
) -> Judged:
    """Judge all rows, fit again with the resulting weights, or with those `wanted`, and judge once more; `refit` fits
    all rows of a table of which this one is a sample.
    """
    fitted = fit_rows(table, settings, bandwidth, draw)
    fit, trusted = fitted.fit, table.trusted[fitted.fit]
    most = fitted.rows.features.shape[1]
    coefficients, kernel = fitted.regress_best(np.ones(len(fit)), ROUGH if len(fit) > MANY else most)
    others = [] if table.pred_probs is None else [learners.brought(table, fit)]
    grown = learners.forest(table, fit, kernel, int(draw.integers(2**31)))
    others += [] if grown is None else [grown]

    usual = Calibration.of([learners.KERNEL, *(each.usual for each in others)], table.classes)
    evidence = Evidence(_labels(table).take(fit), trusted, table.group_count, table.classes, usual)
    scores = [kernel, *(each.fitted for each in others)]
    decision = decide(scores, evidence, draw)
    quality = first = decision.verdict(scores, evidence.labels).quality
    weights = wanted_weights(wanted, table, fitted, settings) if wanted else np.where(trusted, 1, quality)
    if decision.noisy or wanted or len(fit) > MANY:
        regress = fitted.regress if len(fit) > MANY else fitted.regress_best  # with many rows each fit takes seconds
        coefficients, scores[0] = regress(weights, most)
        decision = decide_again(decision, scores, evidence, draw)
    scorer: Scoring = Scorer.of(fitted.phi, coefficients, others)
    count = len(fit)
    if refit is not None:
        before = Judge(scorer, decision, fit, _known(decision, scores, evidence))
        scorer, scores[0], count = refit(table, fitted, before)
        decision = decide_again(decision, scores, evidence, draw)
    if not _tells(decision, scores, evidence):
        return _nothing_known(table, count)
    some, drawn = drawn_qualities(decision, scores, evidence, draw)

    found = Judge(scorer, decision, fit, _known(decision, scores, evidence))(table)
    found.quality[table.decided] = 1
    found.weight[fit] = np.where(trusted, 1.0, np.minimum(weights if wanted else 1.0, found.quality[fit]))
    return Judged(
        weight=found.weight,
        quality=found.quality,
        other=found.other,
        some=fit[some],
        drawn=drawn,
        otherwise=np.stack([first[some], *other_qualities(decision, scores, evidence, some)]),
        noisy=decision.noisy,
        informed=True,
        temperature=_temperature(decision, scores, evidence),
        fitted=count,
        review=reviewed(table.trusted, fit[review_order(decision, scores, evidence, draw)]),
        scorer=scorer,
        decision=decision,
    )


def _known(decision: Decision, scores: Scores, evidence: Evidence) -> Found:
    """The result for the fitted rows."""
    verdict = decision.verdict(scores, evidence.labels)
    weight = np.where(evidence.trusted, 1.0, verdict.quality)
    return Found(weight, verdict.quality, verdict.wrong.argmax(axis=1))


def reviewed(trusted: Bool[np.ndarray, " rows"], first: Int[np.ndarray, " some"]) -> Int[np.ndarray, " untrusted"]:
    """These rows, followed by all other untrusted rows."""
    return np.concatenate([first, np.setdiff1d(np.flatnonzero(~trusted), first)])


def all_scores(
    table: Table, fitted: Fitted, coefficients: Array, others: list[learners.Learner], scores: Scores
) -> Iterator[tuple[Int[np.ndarray, " some"], Scores]]:
    """The fitted rows with their scores, then the others, block by block."""
    yield fitted.fit, scores
    scorer = Scorer.of(fitted.phi, coefficients, others)
    rest = np.setdiff1d(np.arange(len(table.labels)), fitted.fit)
    for first in range(0, len(rest), BLOCK):
        some = rest[first : first + BLOCK]
        yield some, scorer(table.take(some))


def fit_rows(table: Table, settings: Settings, bandwidth: float, draw: np.random.Generator) -> Fitted:
    """The rows to fit, a random sample if there are too many, and their features."""
    gold = draw.permutation(table.gold)[: table.learn_from // 2]
    fit = np.sort(np.concatenate([gold, draw.permutation(table.noisy)[: table.learn_from - len(gold)]]))
    landmarks = LANDMARKS if len(fit) == table.size else FEWER
    phi = kernel_map(choose_landmarks(table.features[fit], landmarks, draw), bandwidth)
    return Fitted(fit, phi, _mapped(table, fit, phi), settings["ridge"], table.classes)


def wanted_weights(wanted: Weigh, table: Table, fitted: Fitted, settings: Settings) -> Float[np.ndarray, " fit"]:
    """The requested weights."""
    raw = padded(table.features[fitted.fit], len(fitted.rows.repeats))
    rough = fitted.rows._replace(features=fitted.rows.features[:, :ROUGH])
    return np.asarray(wanted(Task(rough, raw, settings)))[: len(fitted.fit)].astype(np.float64)


def _labels(rows: Table) -> Labels:
    given, repeats = rows.labels, rows.repeats.astype(np.float64)
    if rows.before is None:
        return Labels(given, rows.groups, repeats)
    decided = np.where(rows.before >= 0, given, -1)
    return Labels(np.where(rows.before >= 0, rows.before, given), rows.groups, repeats, decided)


def _tells(decision: Decision, scores: Scores, evidence: Evidence) -> bool:
    """Whether the labels are clearly more likely given the features than given the class frequencies alone: by one
    standard deviation, and by a factor of at least `EVIDENCE`, since few rows may agree by chance.
    """
    labels, trusted = evidence.labels, evidence.trusted
    belief = decision.calibration.belief(scores)
    found = labels.repeats * np.log(decision.verdict(scores, labels).likelihood)
    found[trusted] = without_noise(belief, labels)[trusted]
    gain = found - labels.repeats * np.log(_frequency(evidence))
    return bool(gain.sum() > np.log(EVIDENCE) + gain.std() * np.sqrt(len(gain)))


def _frequency(evidence: Evidence) -> Float[np.ndarray, " rows"]:
    """The frequency of the label of each row, among trusted rows if it is trusted, otherwise among the others."""
    kind, given = evidence.trusted.astype(int), evidence.labels.truth
    counts = np.zeros((2, evidence.classes))
    np.add.at(counts, (kind, given), evidence.labels.repeats)
    return (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12))[kind, given]


def _temperature(decision: Decision, scores: Scores, evidence: Evidence) -> float:
    """The temperature of the kernel regression alone, for the probable true classes."""
    targets = true_classes(decision.verdict(scores, evidence.labels), evidence.labels)
    targets[evidence.sure] = evidence.targets(evidence.sure)
    usual = Calibration.of([learners.KERNEL], evidence.classes)
    return float(np.exp(-calibrate([scores[0]], targets, usual, 3.0).sharpness[0]))


def _nothing_known(table: Table, fitted: int) -> Judged:
    """The result if nothing was learned: all labels are kept."""
    rows = len(table.labels)
    every, none = np.ones(rows), np.zeros(0, np.int64)
    return Judged(
        weight=every,
        quality=every,
        other=np.zeros(rows, np.int64),
        some=none,
        drawn=np.ones((0, 0)),
        otherwise=np.ones((0, 0)),
        noisy=False,
        informed=False,
        temperature=1.0,
        fitted=fitted,
        review=reviewed(table.trusted, none),
    )


def _mapped(table: Table, fit: Int[np.ndarray, " fit"], phi: KernelMap) -> Rows:
    size = bucket(len(fit))
    firsts = range(0, size, BLOCK)
    blocks = [padded(table.features[fit[first : first + BLOCK]], min(BLOCK, size - first)) for first in firsts]
    return Rows(
        jnp.concatenate([phi(block) for block in blocks]),
        table.given(fit, size),
        padded(table.trusted[fit].astype(np.float32), size),
        padded(table.repeats[fit], size),
    )
