"""Reweighting: fit, judge every row by the fit without it, weight it by the posterior that its label is right,
repeat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from proxbi import _compile
from proxbi._tree import Scalar
from proxbi.cleaning.method import ridge
from proxbi.cleaning.method.bilevel import label_loss, log_belief
from proxbi.cleaning.method.label_noise import Given, Noise, estimate_noise, joint, posterior_and_likelihood

COARSE, FINE = np.linspace(-5, 2, 15), np.linspace(-0.5, 0.5, 21)
"""Log temperatures to try, and then distances from the best of them."""


class Rows(NamedTuple):
    """Rows to fit and to judge."""

    features: Float[Array, "rows size"]
    given: Given
    trusted: Float[Array, " rows"]
    """1 or 0."""
    repeats: Float[Array, " rows"]
    """Sample weights."""


class Judgement(NamedTuple):
    """The outcome of a round."""

    coefficients: Float[Array, "size classes"]
    temperature: Scalar
    """Log temperature."""
    noise: Noise
    belief: Float[Array, "rows classes"]
    """Log class probabilities of each row, from the fit without it."""
    posterior: Float[Array, " rows"]
    """The probability that the label is right."""
    likelihood: Float[Array, " rows"]
    """P(given | u), whether the label is right or wrong."""


def reweigh(rows: Rows, weights: Float[Array, " rows"], penalty: Scalar, noise: Noise, rounds: int) -> Judgement:
    """`rounds` rounds that start with these weights, with e^penalty as ridge and this prior for the noise."""
    found = judge(rows, weights, penalty, noise)
    for _ in range(rounds - 1):
        found = judge(rows, found.posterior, penalty, noise)
    return found


def judge(rows: Rows, weights: Float[Array, " rows"], penalty: Scalar, prior: Noise) -> Judgement:
    """One round; trusted rows have the weight 1, whatever `weights` says."""
    fitted = fit(rows, weights, penalty, prior)
    doubtful = jnp.asarray(np.asarray(rows.repeats) * (1 - np.asarray(rows.trusted)))
    noise = prior
    for _ in range(2):  # the temperature depends on the noise, and the noise on the temperature, but only weakly
        temperature, belief = read(fitted.scores, rows, noise)
        noise = estimate_noise(prior, belief, rows.given, doubtful)
    weighed = posterior_and_likelihood(noise, belief, rows.given)
    return Judgement(fitted.coefficients, temperature, noise, belief, *weighed)


@_compile.jit
def fit(rows: Rows, weights: Float[Array, " rows"], penalty: Scalar, noise: Noise) -> ridge.Fit:
    """The ridge regression of the rows, trusted ones with weight 1; `noise` gives the number of classes."""
    total = rows.repeats * jnp.where(rows.trusted > 0, 1, weights)
    return ridge.fit(rows.features, rows.given.labels, total, penalty, noise.rates.shape[1])


@_compile.jit
def read(scores: Float[Array, "rows classes"], rows: Rows, noise: Noise) -> tuple[Scalar, Float[Array, "rows classes"]]:
    """The log temperature under which the labels are most likely (those of trusted rows without noise), and the log
    class probabilities at this temperature.
    """

    def loss(temperature: Scalar) -> Scalar:
        logs = log_belief(temperature, scores)
        noisy = -jnp.log(joint(noise, jnp.exp(logs), rows.given).likelihood)
        return jnp.sum(rows.repeats * jnp.where(rows.trusted > 0, label_loss(logs, rows.given), noisy))

    def best(tried: Float[Array, " tried"]) -> Scalar:
        return tried[jnp.argmin(jax.lax.map(loss, tried))]

    coarse, fine = (jnp.asarray(grid, scores.dtype) for grid in (COARSE, FINE))
    temperature = best(jnp.clip(best(coarse) + fine, coarse[0], coarse[-1]))
    return temperature, jnp.exp(log_belief(temperature, scores))
