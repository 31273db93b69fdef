r"""The regression that judges, fitted to all rows of a table that is too large to be learned from as a whole.

Settings, landmarks, calibration and noise are learned from a sample. With them every row is judged once, which gives
its weight w_i, as for the rows of the sample. With k_i the kernel values of row i with the landmarks, the fit of
`ridge.py` needs only two sums over the rows,

    G = sum_i w_i k_i k_i',    H = sum_i w_i k_i e_i',

since phi_i = W' k_i with W the whitening of `kernel.py`, so that

    A = W' G W + ridge I = M M',    R = W M^-T,    scores s_i = k_i' R R' H,    leverages l_i = w_i |R' k_i|^2.

Sums of blocks of rows are computed where the blocks are (map and reduce), in the memory of a few matrices as large as
G. Every row is then judged by the fit without it, (s_i - l_i e_i) / (1 - l_i), as those of a sample are.

All of this is in double precision. W magnifies rounding errors a thousand times, and in single precision these depend
on how many rows a processor works on at a time: a table would be judged differently as a whole and in blocks.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import cholesky, solve_triangular
from scipy.linalg.blas import dtrmm

from proxbi.cleaning.method.calibration import Scores
from proxbi.cleaning.method.ridge import LEAST
from proxbi.cleaning.method.scoring import BLOCK, Fitted, Found, Judge, Scorer, Scoring
from proxbi.cleaning.method.table import Table

MAPPED = 1 << 16
"""Rows of a table in memory that are added up at a time."""


class Sums(NamedTuple):
    """The sums over some rows that the fit needs."""

    gram: Float[np.ndarray, "landmarks landmarks"]
    """G."""
    targets: Float[np.ndarray, "landmarks classes"]
    """H."""
    rows: int
    """The number of rows with a weight."""

    @classmethod
    def total(cls, parts: "Iterable[Sums]") -> "Sums":
        """The sums over all parts, added one after another: none is kept."""
        several = iter(parts)
        gram, targets, rows = next(several)
        gram, targets = gram.copy(), targets.copy()
        for part in several:
            gram += part.gram
            targets += part.targets
            rows += part.rows
        return cls(gram, targets, rows)


AddUp = Callable[[Judge], Sums]
"""The sums over all rows of the table, with the weights that this judge gives them."""


class Precise(NamedTuple):
    """A scorer in double precision."""

    scorer: Scorer

    def __call__(self, rows: Table) -> Scores:
        """The scores of these rows."""
        found = np.zeros((len(rows.labels), self.scorer.coefficients.shape[1]))
        for some, values in self.blocks(rows):
            found[some] = values @ self.scorer.coefficients
        return [found, *(ask(rows) for ask in self.scorer.others)]

    def blocks(self, rows: Table) -> Iterator[tuple[slice, Float[np.ndarray, "some landmarks"]]]:
        """Rows and their kernel values."""
        landmarks = self.scorer.landmarks.astype(np.float64)
        squares = np.sum(landmarks**2, axis=1)
        for first in range(0, len(rows.labels), BLOCK):
            some = slice(first, first + BLOCK)
            centred = rows.features[some].astype(np.float64) - self.scorer.center
            distances = np.sum(centred**2, axis=1)[:, None] + squares - 2 * centred @ landmarks.T
            yield some, np.exp(np.maximum(distances, 0) / (-2 * float(self.scorer.bandwidth)))


def add_up(judge: Judge, rows: Table, first: int = 0) -> Sums:
    """Over a block of the table; `first` is the index of its first row."""
    precise = _precise(judge)
    landmarks, classes = precise.scorer.coefficients.shape
    weights = _totals(rows, judge(rows, first))
    gram, targets = np.zeros((landmarks, landmarks)), np.zeros((landmarks, classes))
    for some, values in precise.blocks(rows):
        scaled = values * np.sqrt(weights[some])[:, None]
        gram += scaled.T @ scaled
        targets += values.T @ (np.eye(classes)[rows.labels[some]] * weights[some][:, None])
    return Sums(gram, targets, int(np.sum(weights > 0)))


class LeaveOneOut(NamedTuple):
    """Scores of rows by the fit to all others; replaces a `Scorer`."""

    weigh: Judge
    """Gives rows their weight."""
    coefficients: Float[np.ndarray, "landmarks classes"]
    """R R' H."""
    root: Float[np.ndarray, "landmarks landmarks"]
    """R, which is upper triangular, as W and M' are."""

    @classmethod
    def of(cls, weigh: Judge, sums: Sums, whitening: Array, penalty: Array) -> "LeaveOneOut":
        """From the sums with these weights, and e^penalty as ridge."""
        whiten = np.asarray(whitening, np.float64)
        curved = whiten.T @ sums.gram @ whiten
        curved[np.diag_indices_from(curved)] += np.exp(float(penalty))
        root = solve_triangular(cholesky(curved, lower=True), whiten.T, lower=True).T
        return cls(weigh, root @ (root.T @ sums.targets), np.asfortranarray(root))

    def __call__(self, rows: Table) -> Scores:
        """The scores of rows that were not learned from."""
        scores = _precise(self.weigh)(rows)
        return [self.scores(rows, _totals(rows, self.weigh(rows))), *scores[1:]]

    def scores(self, rows: Table, totals: Float[np.ndarray, " rows"]) -> Float[np.ndarray, "rows classes"]:
        """The scores of rows that had these weights in the fit."""
        found = np.zeros((len(rows.labels), self.coefficients.shape[1]))
        for some, values in _precise(self.weigh).blocks(rows):
            # R is triangular: half the work of a product.
            turned = dtrmm(1.0, self.root, values.T, trans_a=1)
            leverage = np.minimum(totals[some] * np.sum(turned**2, axis=0), 1 - LEAST)[:, None]
            targets = np.eye(found.shape[1])[rows.labels[some]]
            found[some] = (values @ self.coefficients - leverage * targets) / (1 - leverage)
        return found


def refit(
    add: AddUp, table: Table, fitted: Fitted, judge: Judge
) -> tuple[Scoring, Float[np.ndarray, "fit classes"], int]:
    """The fit to all rows; its scores of the rows that were fitted before, each left out; and how many rows it has.

    `judge` is that of the sample, `table`.
    """
    assert isinstance(judge.scorer, Scorer), "rows are weighed by the fit to the sample"
    judge = judge._replace(scorer=Precise(judge.scorer))
    found = judge(table)
    sums = add(judge._replace(places=np.arange(len(table.labels)), known=found))
    nothing = np.zeros(0)
    weigh = judge._replace(places=np.zeros(0, np.int64), known=Found(nothing, nothing, nothing.astype(np.int64)))
    everyone = LeaveOneOut.of(weigh, sums, fitted.phi.whitening, fitted.penalty)
    rows = table.take(fitted.fit)
    return everyone, everyone.scores(rows, rows.repeats * found.weight[fitted.fit]), sums.rows


def of_table(table: Table, places: Int[np.ndarray, " sample"]) -> AddUp:
    """The sums of a table in memory, from which the rows at these places were drawn."""

    def add(judge: Judge) -> Sums:
        ours = judge._replace(places=places)
        firsts = range(0, len(table.labels), MAPPED)
        return Sums.total(add_up(ours, table.take(slice(first, first + MAPPED)), first) for first in firsts)

    return add


def _precise(judge: Judge) -> Precise:
    assert isinstance(judge.scorer, Precise), "rows are weighed in double precision too"
    return judge.scorer


def _totals(rows: Table, found: Found) -> Float[np.ndarray, " rows"]:
    return rows.repeats * found.weight
