"""Reweighting: fit; judge every row by the fit without it; weigh it by the posterior that its label is right; again."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from proxbi._tree import Scalar
from proxbi.cleaning.method import ridge
from proxbi.cleaning.method.noise import Given, Noise, estimate_noise, joint
from proxbi.cleaning.method.settings import label_loss, log_belief

LOG_TEMPERATURES = (-5.0, 2.0, 141)
"""The first and the last that are tried, and how many."""


class Rows(NamedTuple):
    """Rows to fit and to judge."""

    features: Float[Array, "rows size"]
    given: Given
    trusted: Float[Array, " rows"]
    """1 or 0."""
    repeats: Float[Array, " rows"]
    """How often each counts: its sample weight."""


class Judgement(NamedTuple):
    """What a round found."""

    coefficients: Float[Array, "size classes"]
    temperature: Scalar
    """Its logarithm."""
    noise: Noise
    belief: Float[Array, "rows classes"]
    """About each row, of the fit without it."""
    posterior: Float[Array, " rows"]
    """That its label is right."""


def reweigh(rows: Rows, weights: Float[Array, " rows"], penalty: Scalar, noise: Noise, rounds: int) -> Judgement:
    """`rounds` rounds that start with these weights, with e^penalty as ridge and this prior for the noise."""
    found = judge(rows, weights, penalty, noise)
    for _ in range(rounds - 1):
        found = judge(rows, found.posterior, penalty, noise)
    return found


def judge(rows: Rows, weights: Float[Array, " rows"], penalty: Scalar, prior: Noise) -> Judgement:
    """One round; trusted rows have the weight 1, whatever `weights` says."""
    total = rows.repeats * jnp.where(rows.trusted > 0, 1, weights)
    fit = ridge.fit(rows.features, rows.given.labels, total, penalty, prior.rates.shape[1])
    noise = prior
    for _ in range(2):  # the temperature depends on the noise and the noise on the temperature, but little
        temperature = best_temperature(fit.scores, rows, noise)
        belief = jnp.exp(log_belief(temperature, fit.scores))
        noise = estimate_noise(prior, belief, rows.given, rows.repeats * (1 - rows.trusted))
    posterior = joint(noise, belief, rows.given).posterior
    return Judgement(fit.coefficients, temperature, noise, belief, posterior)


@jax.jit
def best_temperature(scores: Float[Array, "rows classes"], rows: Rows, noise: Noise) -> Scalar:
    """The log temperature under which the labels are most likely, those of trusted rows without noise."""

    def loss(temperature: Scalar) -> Scalar:
        logs = log_belief(temperature, scores)
        noisy = -jnp.log(joint(noise, jnp.exp(logs), rows.given).likelihood)
        return jnp.sum(rows.repeats * jnp.where(rows.trusted > 0, label_loss(logs, rows.given), noisy))

    tried = jnp.linspace(*LOG_TEMPERATURES, dtype=scores.dtype)
    return tried[jnp.argmin(jax.lax.map(loss, tried))]
