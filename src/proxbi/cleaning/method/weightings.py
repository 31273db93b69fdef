"""Weightings of rows: the bilevel one, and simple ones that it must beat.

Each takes the rows, some of them trusted, and returns a weight in [0, 1] for each row. `WEIGHTINGS` lists them, the
simplest first.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from proxbi import _compile
from proxbi.cleaning.method.bilevel import Settings, noise_of
from proxbi.cleaning.method.kernel import squared_distances
from proxbi.cleaning.method.reweighting import Rows, judge, reweigh
from proxbi.cleaning.method.table import bucket, padded

NEIGHBOURS, REFEREES = 10, 512
"""kNN-Shapley: the number of neighbours that vote, and the maximal number of trusted rows that value them."""
TRIMMINGS = ROUNDS = 2


class Task(NamedTuple):
    """The rows to weight."""

    rows: Rows
    raw: Float[Array, "rows columns"]
    """The features before the kernel map."""
    settings: Settings


Weigh = Callable[[Task], Float[Array, " rows"]]


def noisy(task: Task) -> Float[Array, " rows"]:
    """The same weight for all rows."""
    return jnp.asarray(np.ones(len(task.rows.repeats), np.float32))


def trusted_only(task: Task) -> Float[Array, " rows"]:
    """Weight 0 for all untrusted rows."""
    return task.rows.trusted


def trusted_posterior(task: Task) -> Float[Array, " rows"]:
    """Fit the trusted rows alone; weight the others by the posterior that their labels are right."""
    return judge(task.rows, trusted_only(task), task.settings["ridge"], noise_of(task.settings)).posterior


def trimming(task: Task) -> Float[Array, " rows"]:
    """Fit all rows, drop as many of the least likely labels as are estimated to be wrong, fit the rest, and repeat."""
    rows = task.rows
    doubtful = np.flatnonzero((np.asarray(rows.trusted) == 0) & (np.asarray(rows.repeats) > 0))
    labels = np.asarray(rows.given.labels)[doubtful]
    kept = np.ones(len(rows.repeats), np.float32)
    for _ in range(TRIMMINGS):
        found = judge(rows, jnp.asarray(kept), task.settings["ridge"], noise_of(task.settings))
        own = np.asarray(found.belief)[doubtful, labels]
        dropped = round(float(np.sum(1 - np.asarray(found.posterior)[doubtful])))
        kept = np.ones(len(rows.repeats), np.float32)
        kept[doubtful[np.argsort(own, kind="stable")[:dropped]]] = 0
    return jnp.asarray(kept)


def knn_shapley(task: Task) -> Float[Array, " rows"]:
    """Weight 1 for rows whose Shapley value is not negative, where the game is the accuracy of a nearest-neighbour
    vote on trusted rows.

    With the n rows in order of their distance to a trusted row, and hit_i = 1 where row i has its label, the values
    are, starting with the farthest row, s_n = hit_n / n and s_i = s_{i+1} + (hit_i - hit_{i+1}) min(k, i) / (k i); they
    are averaged over trusted rows. (Jia et al., Efficient task-specific data valuation for nearest neighbor algorithms,
    VLDB 2019.)
    """
    gold = np.flatnonzero(np.asarray(task.rows.trusted))[:REFEREES]
    size = bucket(len(gold))
    return _shapley(task.raw, task.rows, padded(gold, size), padded(np.ones(len(gold), np.float32), size))


def bilevel(task: Task) -> Float[Array, " rows"]:
    """The posterior that a label is right, after a few rounds of fitting and weighting with the solved settings."""
    return reweigh(task.rows, noisy(task), task.settings["ridge"], noise_of(task.settings), ROUNDS).posterior


class Weighting(NamedTuple):
    """A weighting of rows, with its names."""

    name: str
    plain: str
    """The name on pages."""
    meaning: str
    """A short description, for a table."""
    needs_trusted: bool
    weigh: Weigh


NOISY = Weighting("noisy", "all labels as given", "all rows, with the labels given", False, noisy)
BILEVEL = Weighting(
    "bilevel",
    "rows weighted by quality",
    "weights learned by the bilevel solver: the probability that a label is right",
    False,
    bilevel,
)
WEIGHTINGS = (
    NOISY,
    Weighting("trusted only", "trusted rows only", "trusted rows, and no others", True, trusted_only),
    Weighting(
        "trusted posterior",
        "rows that trusted ones confirm",
        "a model of the trusted rows judges each label",
        True,
        trusted_posterior,
    ),
    Weighting(
        "trimming",
        "without the most surprising rows",
        "rows with a large loss are dropped, and the model is fitted again (trimming)",
        False,
        trimming,
    ),
    Weighting(
        "knn shapley",
        "without misleading rows",
        "rows that harm their neighbours' votes are dropped (kNN-Shapley)",
        True,
        knn_shapley,
    ),
    BILEVEL,
)
"""The simplest first: a later one is chosen only if it is clearly better."""
PLAIN_FREE = "a free weight for each row"
MEANING_OF_FREE = "one free weight for each row, learned by the bilevel solver"
MEANINGS = {one.name: one.meaning for one in WEIGHTINGS} | {"free": MEANING_OF_FREE}
PLAIN = {one.name: one.plain for one in WEIGHTINGS} | {"free": PLAIN_FREE}
"""Both by name."""


@_compile.jit
def _shapley(raw: Array, rows: Rows, referees: Array, votes: Array) -> Array:
    """1 for rows whose value is not negative. Rows without a value come last with hit 0, so the last valued row gets
    its s_n.
    """
    valued = (rows.trusted == 0) & (rows.repeats > 0)
    labels = rows.given.labels

    def values(referee: Array) -> Array:
        distances = squared_distances(raw, raw[referee][None, :])[:, 0]
        order = jnp.argsort(jnp.where(valued, distances, jnp.inf))
        hits = jnp.where(valued & (labels == labels[referee]), 1.0, 0.0).astype(raw.dtype)[order]
        place = jnp.arange(1, len(hits), dtype=raw.dtype)
        changes = (hits[:-1] - hits[1:]) * jnp.minimum(NEIGHBOURS, place) / (NEIGHBOURS * place)
        sums = jnp.append(jnp.cumsum(changes[::-1])[::-1], jnp.zeros(1, raw.dtype))
        return jnp.zeros_like(sums).at[order].set(sums)

    total = jnp.sum(votes[:, None] * jax.lax.map(values, referees), axis=0)
    return jnp.where(valued, (total > -1e-6 * jnp.sum(votes)).astype(raw.dtype), 1)
