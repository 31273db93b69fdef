"""All rows, judged by a fit with the weights that were chosen.

At most `FIT` rows are fitted, and each of these is judged by the fit without it; the others, which it has not seen, as
they are. So a million rows cost little more than thirty thousand.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proxbi._tree import Scalar
from proxbi.cleaning.kernel import KernelMap, choose_landmarks, kernel_map, product
from proxbi.cleaning.noise import Given, Noise, joint, most_likely_other
from proxbi.cleaning.rounds import Rows, judge
from proxbi.cleaning.settings import Settings, log_belief, noise_of
from proxbi.cleaning.table import Table, bucket, padded
from proxbi.cleaning.ways import Task, Way

FIT, LANDMARKS, BLOCK = 30_000, 1500, 16_384


class Judged(NamedTuple):
    """What is known of each row of the table."""

    weight: Float[np.ndarray, " rows"]
    quality: Float[np.ndarray, " rows"]
    other: Int[np.ndarray, " rows"]
    """The most likely class if the label is wrong."""
    temperature: float
    noise: Noise


def judge_all(table: Table, settings: Settings, bandwidth: float, way: Way, draw: np.random.Generator) -> Judged:
    """Weigh with this way, then judge."""
    gold = draw.permutation(table.gold)[: FIT // 2]
    fit = np.sort(np.concatenate([gold, draw.permutation(table.noisy)[: FIT - len(gold)]]))
    phi = kernel_map(choose_landmarks(table.features[fit], LANDMARKS, draw), bandwidth)
    rows = _rows(table, fit, phi)
    weights = way(Task(rows, padded(table.features[fit], len(rows.count)), settings))
    found = judge(rows, weights, settings["ridge"], noise_of(settings))
    judged = Judged(*(np.zeros(len(table.labels), kind) for kind in (float, float, int)), float(found.temperature), found.noise)
    judged.weight[fit] = np.asarray(weights)[: len(fit)]
    judged.quality[fit] = np.asarray(found.posterior)[: len(fit)]
    judged.other[fit] = np.asarray(most_likely_other(found.noise, found.belief, rows.given))[: len(fit)]
    rest = np.setdiff1d(np.arange(len(table.labels)), fit)
    for start in range(0, len(rest), BLOCK):
        some = rest[start : start + BLOCK]
        block = padded(table.features[some], min(BLOCK, bucket(len(some))))
        given = table.given(some, len(block))
        quality, other = _unseen(phi, block, given, found.coefficients, found.temperature, found.noise)
        judged.weight[some] = judged.quality[some] = np.asarray(quality)[: len(some)]
        judged.other[some] = np.asarray(other)[: len(some)]
    judged.weight[table.trusted] = 1
    return judged


def _rows(table: Table, fit: Int[np.ndarray, " fit"], phi: KernelMap) -> Rows:
    size = bucket(len(fit))
    blocks = [padded(table.features[fit[start : start + BLOCK]], min(BLOCK, size - start)) for start in range(0, size, BLOCK)]
    return Rows(
        jnp.concatenate([phi(block) for block in blocks]),
        table.given(fit, size),
        padded(table.trusted[fit].astype(np.float32), size),
        padded(table.count[fit], size),
    )


@jax.jit
def _unseen(
    phi: KernelMap, block: Array, given: Given, coefficients: Array, temperature: Scalar, noise: Noise
) -> tuple[Array, Array]:
    """Quality and most likely other class of rows that were not fitted."""
    belief = jnp.exp(log_belief(temperature, product(phi(block), coefficients)))
    return joint(noise, belief, given).posterior, most_likely_other(noise, belief, given)
