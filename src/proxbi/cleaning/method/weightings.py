"""Weightings of rows: the bilevel one, and simple ones that it must beat.

Each sees the rows, some of them trusted, and gives every row a weight in [0, 1]. `WEIGHTINGS` has them all, the
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
"""Of kNN-Shapley: how many neighbours vote, and how many trusted rows they are valued by, at most."""
TRIMMINGS = ROUNDS = 2


class Task(NamedTuple):
    """What is to be weighed."""

    rows: Rows
    raw: Float[Array, "rows columns"]
    """The features before they were mapped."""
    settings: Settings


Weigh = Callable[[Task], Float[Array, " rows"]]


def noisy(task: Task) -> Float[Array, " rows"]:
    """All rows alike."""
    return jnp.asarray(np.ones(len(task.rows.repeats), np.float32))


def trusted_only(task: Task) -> Float[Array, " rows"]:
    """No row that is not trusted."""
    return task.rows.trusted


def trusted_posterior(task: Task) -> Float[Array, " rows"]:
    """Fit the trusted rows alone; weigh the others by the posterior that they are right."""
    return judge(task.rows, trusted_only(task), task.settings["ridge"], noise_of(task.settings)).posterior


def trimming(task: Task) -> Float[Array, " rows"]:
    """Fit all rows; drop those whose labels are least likely, as many as are wrong by estimate; fit the rest; again."""
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
    """Weight 1 for rows whose Shapley value is not negative, where rows play for the accuracy of a nearest-neighbour
    vote on trusted rows.

    With the n rows in order of their distance to a referee, and hit_i = 1 where row i has its label, the values are,
    from the farthest on, s_n = hit_n / n and s_i = s_{i+1} + (hit_i - hit_{i+1}) min(k, i) / (k i); their mean over
    referees counts. (Jia et al., Efficient task-specific data valuation for nearest neighbor algorithms, VLDB 2019.)
    """
    gold = np.flatnonzero(np.asarray(task.rows.trusted))[:REFEREES]
    size = bucket(len(gold))
    return _shapley(task.raw, task.rows, padded(gold, size), padded(np.ones(len(gold), np.float32), size))


def bilevel(task: Task) -> Float[Array, " rows"]:
    """The posterior that a label is right, after a few rounds of fitting and weighing with the settings solved for."""
    return reweigh(task.rows, noisy(task), task.settings["ridge"], noise_of(task.settings), ROUNDS).posterior


class Weighting(NamedTuple):
    """A way to weigh rows."""

    name: str
    plain: str
    """What it is called on pages."""
    meaning: str
    """In a few words, for a table."""
    needs_trusted: bool
    weigh: Weigh


NOISY = Weighting("noisy", "all labels as given", "all rows, with the labels given", False, noisy)
BILEVEL = Weighting(
    "bilevel",
    "rows weighted by quality",
    "weights learned by the bilevel solver: how likely a label is right",
    False,
    bilevel,
)
WEIGHTINGS = (
    NOISY,
    Weighting("trusted only", "trusted rows only", "no row that is not trusted", True, trusted_only),
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
        "rows of large loss are dropped, and the model fitted again (trimming)",
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
"""The simplest first: a later one is taken only if it is clearly better."""
PLAIN_FREE = "a free weight for each row"
MEANING_OF_FREE = "one free weight for each row, learned by the bilevel solver"
MEANINGS = {one.name: one.meaning for one in WEIGHTINGS} | {"free": MEANING_OF_FREE}
PLAIN = {one.name: one.plain for one in WEIGHTINGS} | {"free": PLAIN_FREE}
"""Both by name."""


@_compile.jit
def _shapley(raw: Array, rows: Rows, referees: Array, votes: Array) -> Array:
    """1 for rows whose value is not negative. Rows that are not valued come last and hit nothing, which gives the last
    one that is its s_n.
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
