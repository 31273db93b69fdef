r"""The bilevel problem whose solution is the settings of the cleaner.

x = log bandwidth, log ridge, log temperature, and the noise: log-odds of a wrong label, overall, by class, by group
C = coefficients, a row for each of n rows that are fitted, a column for each class

lower   weighted kernel ridge regression of one-hot labels E, min over s of sum_i w_i |s(u_i) - e_i|^2 + ridge |s|^2:
        its solution is s(u) = sum_i k(u, u_i) sqrt(w_i) C_i, where C minimises the strongly convex quadratic
            g(x, C) = <C, (V K V + ridge I) C> / (2 n) - <C, V E> / n,    V = diag(sqrt(w)),  K_ij = k(u_i, u_j)
upper   f(x, C) = mean of -log p(label_j | u_j) over trusted rows and of -log P(given_j | u_j) over noisy ones, none of
                  them fitted; p(. | u) = softmax(s(u) / temperature), P by `label_noise.py`; and, with m such rows, a
                  normal prior (log-odds - log 1/7)^2 / (2 m): without evidence, one label in eight is wrong
h(x)            = boxes for the first four, and a normal prior |.|^2 / (2 m) that pulls the log-odds of all classes, and
                  of all groups, together

The weight w_i(x) is the posterior probability that label i is right, given the noise in x and the class probabilities
of row i in an earlier fit. The problem is solved on a sample, and its solution holds for all rows: bandwidth and
temperature do not depend on the number of rows, and a ridge that is not divided by that number is a ratio of variances.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from proxbi._minimize import minimize
from proxbi._tree import Scalar
from proxbi.cleaning.method.kernel import gaussian, product
from proxbi.cleaning.method.label_noise import Given, Noise, joint, symmetric_confusion
from proxbi.cleaning.result import OuterStep
from proxbi.hypergradient import Implicit
from proxbi.problem import Counts, Problem
from proxbi.regularizers import Box, Regularizer, Separable, SquaredL2
from proxbi.result import HistoryRow, Snapshot, Status
from proxbi.solvers import AdaptiveProxBiO

Settings = dict[str, Float[Array, "..."]]
"""x, by name."""

BOXES = {
    "bandwidth": (-4.0, 3.0),  # natural logarithms, of the bandwidth in units of the typical squared distance
    "ridge": (-5.0, 5.0),
    "temperature": (-5.0, 2.0),
    "rate": (-7.0, 2.0),
}
START = {"bandwidth": -1.5, "ridge": -1.0, "temperature": -2.5, "rate": -2.0}
STEPS, TOL = 60, 2e-3
SOLVER = AdaptiveProxBiO(Implicit(inner_steps=400))  # in single precision, more steps gain nothing


class Part(NamedTuple):
    """Rows in one role."""

    distances: Float[Array, "rows fitted"]
    """Squared distances to the fitted rows, in units of the typical one."""
    given: Given
    repeats: Float[Array, " rows"]
    """The sample weight of each row."""


class Sample(NamedTuple):
    """The data of the problem: no row is in two parts."""

    fit: Part
    trusted: Part
    noisy: Part
    belief: Float[Array, "fitted classes"]
    """Class probabilities of the fitted rows in an earlier fit; without one their labels, one-hot: then w = 1."""


class Solved(NamedTuple):
    """The solution."""

    settings: Settings
    history: list[OuterStep]
    status: Status


def start(classes: int, groups: int) -> Settings:
    """Where the solver starts."""
    noise = {"by_class": np.zeros(classes)} | ({"by_group": np.zeros(groups)} if groups > 1 else {})
    return {name: jnp.asarray(np.float32(value)) for name, value in (START | noise).items()}


def solve(sample: Sample, x0: Settings, held_out: Part) -> Solved:
    """The settings of this sample. The history contains the loss on `held_out`, rows that the solver does not see.

    These are trusted rows if the sample has trusted rows, and noisy rows otherwise.
    """
    problem = KernelRidge(_upper, _lower, _prior(sample, x0), sample)
    trusting = bool(np.any(sample.trusted.repeats))
    pair = (sample.trusted if trusting else sample.noisy, held_out)
    losses: list[list[float]] = []
    least, best = math.inf, x0

    def watch(row: HistoryRow, snapshot: Snapshot) -> None:
        nonlocal least, best
        x, y = snapshot.state.x, snapshot.state.y
        losses.append([float(_loss(x, y, sample, rows, trusting)) for rows in pair])
        if row["objective"] < least:  # it may rise again: the values of the solver are inexact
            least, best = row["objective"], x

    y0 = jnp.asarray(np.zeros(sample.belief.shape, sample.belief.dtype))
    result = minimize(problem, x0, y0, SOLVER, steps=STEPS, every=1, tol=TOL, callbacks=[watch], throw=False)
    raise_if_interrupted(result.status)
    history = [outer_step(row, *both) for row, both in zip(result.history, losses, strict=True)]
    return Solved(x0 if result.status.failed else best, history, result.status)


def raise_if_interrupted(status: Status) -> None:
    """`minimize` returns its last iterate on Ctrl-C, which is of no use here."""
    if status is Status.INTERRUPTED:
        raise KeyboardInterrupt


def outer_step(row: HistoryRow, seen: float, held_out: float) -> OuterStep:
    """A row of `minimize`'s history, with the losses on trusted rows: those that the solver sees, and others."""
    counts: dict[str, Any] = dict(row)
    calls = sum(counts[name] for name in vars(Counts()))
    return OuterStep(row["step"], row["objective"], row["stationarity"], seen, held_out, calls)


class KernelRidge(Problem):
    """The problem, with the oracles that are cheap because the lower level is quadratic."""

    def grad_lower(self, x: Settings, y: Array) -> Array:
        """((V K V + ridge I) Y - V E) / n."""
        return (self._curved(x)(y) - _roots(x, self.data) * _targets(self.data)) / len(y)

    def hvp(self, x: Settings, y: Array) -> Callable[[Array], Array]:
        """The map Y -> (V K V + ridge I) Y / n."""
        curved = self._curved(x)
        return lambda v: curved(v) / len(v)

    def preconditioner(self, x: Settings, y: Array) -> Callable[[Array], Array]:
        """Its inverse, up to rounding: the Cholesky factor for a sample costs no more than a few products."""
        roots, kernel = _roots(x, self.data), gaussian(self.data.fit.distances, jnp.exp(x["bandwidth"]))
        curved = roots * kernel * roots.T + jnp.exp(x["ridge"]) * jnp.eye(len(y), dtype=kernel.dtype)
        factor = cho_factor(curved)
        return lambda r: len(r) * cho_solve(factor, r)

    def _curved(self, x: Settings) -> Callable[[Array], Array]:
        roots, kernel = _roots(x, self.data), gaussian(self.data.fit.distances, jnp.exp(x["bandwidth"]))
        return lambda v: roots * product(kernel, roots * v) + jnp.exp(x["ridge"]) * v


@jax.jit
def noise_of(x: Settings) -> Noise:
    """The noise in x, with wrong labels uniform over the other classes."""
    by_class = x["by_class"]
    logits = (x["rate"] + by_class)[None, :] + x.get("by_group", jnp.zeros(1, by_class.dtype))[:, None]
    return Noise(jax.nn.sigmoid(logits), symmetric_confusion(len(by_class)).astype(by_class.dtype))


def log_belief(temperature: Scalar, scores: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    """log p(class | row), from the log temperature."""
    return jax.nn.log_softmax(scores / jnp.exp(temperature), axis=1)


def label_loss(logs: Float[Array, "rows classes"], given: Given) -> Float[Array, " rows"]:
    """-log p(label | row)."""
    return -jnp.take_along_axis(logs, given.labels[:, None], axis=1)[:, 0]


def _roots(x: Settings, data: Sample) -> Float[Array, "fitted 1"]:
    """V."""
    posterior = joint(noise_of(x), data.belief, data.fit.given).posterior
    # Two roots instead of the root of the product: repeats may be 0, where a root has no derivative.
    return (jnp.sqrt(data.fit.repeats) * jnp.sqrt(posterior))[:, None]


def _targets(data: Sample) -> Float[Array, "fitted classes"]:
    """E."""
    return jax.nn.one_hot(data.fit.given.labels, data.belief.shape[1], dtype=data.belief.dtype)


def _lower(x: Settings, y: Array, data: Sample) -> Scalar:
    roots, kernel = _roots(x, data), gaussian(data.fit.distances, jnp.exp(x["bandwidth"]))
    curved = roots * product(kernel, roots * y) + jnp.exp(x["ridge"]) * y
    return jnp.sum(y * (curved / 2 - roots * _targets(data))) / len(y)


def _upper(x: Settings, y: Array, data: Sample) -> Scalar:
    trusted, noisy = data.trusted.repeats, data.noisy.repeats
    total = jnp.sum(trusted * _losses(x, y, data, data.trusted, True))
    total = total + jnp.sum(noisy * _losses(x, y, data, data.noisy, False))
    prior = (x["rate"] - START["rate"]) ** 2 / 2
    return (total + prior) / (jnp.sum(trusted) + jnp.sum(noisy))


def _losses(x: Settings, y: Array, data: Sample, rows: Part, trusted: bool) -> Float[Array, " rows"]:
    """-log p(label | u) of trusted rows, -log P(given | u) of noisy ones."""
    kernel = gaussian(rows.distances, jnp.exp(x["bandwidth"]))
    logs = log_belief(x["temperature"], product(kernel, _roots(x, data) * y))
    return (
        label_loss(logs, rows.given) if trusted else -jnp.log(joint(noise_of(x), jnp.exp(logs), rows.given).likelihood)
    )


@partial(jax.jit, static_argnums=4)
def _loss(x: Settings, y: Array, data: Sample, rows: Part, trusted: bool) -> Scalar:
    return jnp.sum(rows.repeats * _losses(x, y, data, rows, trusted)) / jnp.sum(rows.repeats)


def _prior(sample: Sample, x: Settings) -> Regularizer:
    together = SquaredL2(1 / float(np.sum(sample.trusted.repeats) + np.sum(sample.noisy.repeats)))
    return Separable({name: Box(*BOXES[name]) if name in BOXES else together for name in x})
