"""The samples of a table on which its settings are solved for; no row has two roles.

The trusted rows are split into two halves. A solution found with one half is judged on the other, and the settings of
the cleaner are the mean of the two solutions. Without trusted rows, some noisy rows take their place as judges.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proxbi import _compile
from proxbi.cleaning.method import bilevel
from proxbi.cleaning.method.bilevel import Sample, Settings, Solved
from proxbi.cleaning.method.kernel import gaussian, product, squared_distances
from proxbi.cleaning.method.table import Table, bucket, padded

SAMPLE, PER_CLASS = 800, 10
"""The maximal number of rows of a sample in each role; more if there are many classes, so that each has some rows."""
HALF = 4096
"""The maximal number of rows in a half."""


class Roles(NamedTuple):
    """The role of each row of the table."""

    fit: Int[np.ndarray, " fit"]
    watch: Int[np.ndarray, " watch"]
    """Noisy rows in the upper objective."""
    halves: tuple[Int[np.ndarray, " half"], Int[np.ndarray, " half"]]
    """Trusted rows. Without any: no rows in the first half, and in the second noisy rows that only judge."""

    @property
    def helpers(self) -> tuple[Int[np.ndarray, " some"], Int[np.ndarray, " some"]]:
        """The rows of each half that help to solve and to fit; all rows of a half judge the other."""
        first, second = self.halves
        return first[:SAMPLE], second[:SAMPLE]


def assign(table: Table, draw: np.random.Generator, trusted: Int[np.ndarray, " trusted"] | None = None) -> Roles:
    """Roles, drawn at random, for all trusted rows or only for these; rows of sample weight 0 get none."""
    noisy, gold = draw.permutation(table.noisy), draw.permutation(table.gold if trusted is None else trusted)
    half, most = min(HALF, len(gold) // 2), max(SAMPLE, PER_CLASS * table.classes)
    fit = min(most, max(1, len(noisy) // 2))
    watch = min(most, (len(noisy) - fit) // (1 if half else 2))
    judges = gold[half : 2 * half] if half else noisy[fit + watch :][:most]
    return Roles(noisy[:fit], noisy[fit : fit + watch], (gold[:half], judges))


def tune(table: Table, roles: Roles, unit: float) -> list[Solved]:
    """The settings from each half, with the loss on the other; `unit` is the unit of squared distances."""
    size, many, few = (bucket(len(part)) for part in (roles.fit, roles.watch, max(roles.helpers, key=len)))
    fit = _rows(table, roles.fit, size, roles.fit, size, unit)
    watch = _rows(table, roles.watch, many, roles.fit, size, unit)
    halves = [_rows(table, part, few, roles.fit, size, unit) for part in roles.helpers]
    # First without trusted rows and with all weights 1, shared by both halves: this fit gives the class probabilities
    # from which the weights are computed.
    labels = jnp.asarray(np.eye(table.classes, dtype=np.float32)[np.asarray(fit.given.labels)])
    blind = Sample(fit, halves[0]._replace(repeats=jnp.asarray(np.zeros(few, np.float32))), watch, labels)
    first = bilevel.solve(blind, bilevel.start(table.classes, table.group_count), watch)
    sample = blind._replace(belief=_belief(blind, first.settings))
    if not len(roles.halves[0]):
        return [bilevel.solve(blind._replace(belief=sample.belief), first.settings, halves[1])]
    return [bilevel.solve(sample._replace(trusted=halves[i]), first.settings, halves[1 - i]) for i in (0, 1)]


def average(tuned: list[Solved]) -> Settings:
    """The mean of the settings, which are logarithms."""
    each = [one.settings for one in tuned]
    return {name: jnp.asarray(np.mean([np.asarray(one[name]) for one in each], axis=0)) for name in each[0]}


def _rows(
    table: Table, rows: Int[np.ndarray, " rows"], size: int, fit: Int[np.ndarray, " fit"], fit_size: int, unit: float
) -> bilevel.Part:
    center = table.features[fit].mean(axis=0)  # keeps the rounding errors of distances small
    scale = np.float32(np.sqrt(unit))
    some, fitted = ((table.features[part] - center) / scale for part in (rows, fit))
    distances = squared_distances(padded(some, size), padded(fitted, fit_size))
    return bilevel.Part(distances, table.given(rows, size), padded(table.repeats[rows], size))


@_compile.jit
def _belief(sample: Sample, x: Settings) -> Float[Array, "rows classes"]:
    """Class probabilities of each row of the sample, from a fit without it in which all posteriors are 1.

    With A = V K V + ridge I and C = A^-1 V E, as in `bilevel.py`, the score of row i without it is
    e_i - C_i / (v_i (A^-1)_ii).
    """
    roots = jnp.sqrt(sample.fit.repeats)[:, None]
    kernel = roots * gaussian(sample.fit.distances, jnp.exp(x["bandwidth"])) * roots.T
    inverse = jnp.linalg.inv(kernel + jnp.exp(x["ridge"]) * jnp.eye(len(kernel), dtype=kernel.dtype))
    targets = jax.nn.one_hot(sample.fit.given.labels, sample.belief.shape[1], dtype=kernel.dtype)
    seen = jnp.maximum(roots, 1e-6) * jnp.diagonal(inverse)[:, None]  # rows of padding have root 0
    return jnp.exp(bilevel.log_belief(x["temperature"], targets - product(inverse, roots * targets) / seen))
