"""All rows, judged by a fit with the weights that were picked.

At most `FIT` rows are fitted, and each of these is judged by the fit without it; the others, which it has not seen, as
they are. So a million rows cost little more than thirty thousand.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proxbi import _compile
from proxbi._tree import Scalar
from proxbi.cleaning.method.kernel import KernelMap, choose_landmarks, kernel_map
from proxbi.cleaning.method.label_noise import TINY, Given, Noise, joint, most_likely_other
from proxbi.cleaning.method.reweighting import Judgement, Rows, judge
from proxbi.cleaning.method.bilevel import Settings, log_belief, noise_of, start
from proxbi.cleaning.method.table import Table, bucket, padded
from proxbi.cleaning.method.weightings import Task, Way

FIT, ROUGH = 30_000, 512
LANDMARKS, FEWER = 1500, 1024
"""Of the map; fewer where there are more rows than are fitted, which cost as many kernel values each."""
BLOCK = 2048
"""Rows that are mapped at a time: their kernel values stay in the cache, which is twice as fast."""
EVIDENCE = 20.0


class Judged(NamedTuple):
    """What is known of each row of the table."""

    weight: Float[np.ndarray, " rows"]
    quality: Float[np.ndarray, " rows"]
    other: Int[np.ndarray, " rows"]
    """The most likely class if the label is wrong."""
    temperature: float
    fitted: int
    """How many rows were."""
    informed: bool
    """Whether the features tell anything about the labels; if not, all labels are kept."""


def judge_all(table: Table, settings: Settings, bandwidth: float, way: Way, draw: np.random.Generator) -> Judged:
    """Weigh rows this way, fit them, and judge all."""
    gold = draw.permutation(table.gold)[: FIT // 2]
    fit = np.sort(np.concatenate([gold, draw.permutation(table.noisy)[: FIT - len(gold)]]))
    landmarks = LANDMARKS if len(fit) == len(table.labels) else FEWER
    phi = kernel_map(choose_landmarks(table.features[fit], landmarks, draw), bandwidth)
    rows = _mapped(table, fit, phi)
    # L is triangular, so that the first columns of phi are the map with the first landmarks alone: enough to weigh by.
    rough = rows._replace(features=rows.features[:, :ROUGH])
    weights = way(Task(rough, padded(table.features[fit], len(rows.repeats)), settings))
    found = judge(rows, weights, settings["ridge"], noise_of(settings))
    informed = _tells(found, table, fit)
    if not informed:
        weights, found = jnp.asarray(np.ones(len(weights), np.float32)), _nothing_known(found)

    weight, quality, other = (np.zeros(len(table.labels), kind) for kind in (float, float, int))
    weight[fit], quality[fit] = np.asarray(weights)[: len(fit)], np.asarray(found.posterior)[: len(fit)]
    other[fit] = np.asarray(most_likely_other(found.noise, found.belief, rows.given))[: len(fit)]
    weighed = np.unique(weight[fit][~table.trusted[fit]])
    for some, posterior, likely in _unseen(table, np.setdiff1d(np.arange(len(table.labels)), fit), phi, found):
        quality[some], other[some] = posterior, likely
        # A way that weighs all rows alike does so with these.
        weight[some] = weighed[0] if len(weighed) == 1 else posterior
    weight[table.trusted] = 1
    return Judged(weight, quality, other, math.exp(found.temperature), len(fit), informed)


def _tells(found: Judgement, table: Table, fit: Int[np.ndarray, " fit"]) -> bool:
    """Whether the labels are clearly likelier given the features than given how frequent each class is: by two standard
    deviations, and by a factor of at least `EVIDENCE`, as few rows may agree by chance.
    """
    own = np.asarray(found.belief)[np.arange(len(fit)), table.labels[fit]]
    likelihood = np.where(table.trusted[fit], own, np.asarray(found.likelihood)[: len(fit)])
    gain = table.repeats[fit] * np.log((likelihood + TINY) / _frequency(table, fit))
    return bool(gain.sum() > np.log(EVIDENCE) + 2 * gain.std() * np.sqrt(len(gain)))


def _frequency(table: Table, fit: Int[np.ndarray, " fit"]) -> Float[np.ndarray, " fit"]:
    """Of the label of each row, among those rows that are trusted or among those that are not."""
    labels, trusted, counts = table.labels[fit], table.trusted[fit], np.zeros((2, table.classes))
    np.add.at(counts, (trusted.astype(int), labels), table.repeats[fit])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), TINY)
    return np.maximum(shares, TINY)[trusted.astype(int), labels]


def _nothing_known(found: Judgement) -> Judgement:
    """All classes are as likely, and labels are wrong as often as is usual."""
    groups, classes = found.noise.rates.shape
    noise = noise_of(start(classes, groups))
    return found._replace(
        coefficients=jnp.zeros_like(found.coefficients),
        noise=noise,
        belief=jnp.full_like(found.belief, 1 / classes),
        posterior=jnp.full_like(found.posterior, 1 - noise.rates[0, 0]),
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


def _unseen(
    table: Table, rest: Int[np.ndarray, " rest"], phi: KernelMap, found: Judgement
) -> Iterator[tuple[Int[np.ndarray, " some"], Float[np.ndarray, " some"], Int[np.ndarray, " some"]]]:
    """Rows that were not fitted, block by block: which, their quality, and the most likely other class."""
    score = phi.scorer(found.coefficients)
    for first in range(0, len(rest), BLOCK):
        some = rest[first : first + BLOCK]
        size = min(BLOCK, bucket(len(some)))
        scores = score(padded(table.features[some], size))
        quality, other = _judge_block(scores, table.given(some, size), found.temperature, found.noise)
        yield some, np.asarray(quality)[: len(some)], np.asarray(other)[: len(some)]


@_compile.jit
def _judge_block(scores: Array, given: Given, temperature: Scalar, noise: Noise) -> tuple[Array, Array]:
    belief = jnp.exp(log_belief(temperature, scores))
    return joint(noise, belief, given).posterior, most_likely_other(noise, belief, given)
