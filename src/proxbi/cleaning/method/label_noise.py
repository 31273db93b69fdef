r"""A model of label noise, and the posterior that a label is right.

For a row of true class t, from group a,

    P(given = t) = 1 - r(a, t),        P(given = g) = r(a, t) S(t, g)  for g != t,

with r the rates of wrong labels and S(t, .) the distribution of wrong labels, 0 at t. With p(t | u), the class
probabilities of a model that has not seen the label of row u,

    P(given = g, right | u) = p(g | u) (1 - r(a, g)),     P(given = g, wrong | u) = sum_t p(t | u) r(a, t) S(t, g),

and the posterior that the label is right is the first divided by the sum of the two. If r is the same for all classes,
rows weighted by the posterior have the class proportions of clean rows: posterior times P(given = g | u) is
(1 - r) p(g | u).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import gammaln

from proxbi import _compile


class Given(NamedTuple):
    """The given labels, and the group of each row."""

    labels: Int[Array, " rows"]
    groups: Int[Array, " rows"]


class Noise(NamedTuple):
    """Rates of wrong labels, and the distribution of wrong labels."""

    rates: Float[Array, "groups classes"]
    """r(a, t)."""
    confusion: Float[Array, "classes classes"]
    """S(t, g)."""


class Joint(NamedTuple):
    """P(given, right | u) and P(given, wrong | u) of each row."""

    right: Float[Array, " rows"]
    wrong: Float[Array, " rows"]

    @property
    def likelihood(self) -> Float[Array, " rows"]:
        """P(given | u)."""
        return self.right + self.wrong

    @property
    def posterior(self) -> Float[Array, " rows"]:
        """P(right | given, u)."""
        return self.right / self.likelihood


TINY = 1e-12
"""Keeps logarithms and quotients finite in single precision."""
PRIOR_ROWS = 50.0
"""The weight of the rates of the sample, in rows, when all rows are counted."""


def joint(noise: Noise, belief: Float[Array, "rows classes"], given: Given) -> Joint:
    """The two probabilities of each row.

    >>> noise = Noise(jnp.full((1, 2), 0.2, jnp.float32), symmetric_confusion(2))
    >>> given = Given(jnp.array([0, 1]), jnp.array([0, 0]))
    >>> belief = jnp.array([[0.9, 0.1], [0.9, 0.1]], jnp.float32)
    >>> print(np.asarray(joint(noise, belief, given).posterior).round(2))
    [0.97 0.31]
    """
    own = _own(belief, given.labels)
    right = own * (1 - _own(noise.rates[given.groups], given.labels))
    return Joint(right + TINY, jnp.sum(_wrong(noise, belief, given), axis=1) + TINY)


@jax.jit
def posterior_and_likelihood(
    noise: Noise, belief: Float[Array, "rows classes"], given: Given
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """P(right | given, u) and P(given | u) of each row."""
    both = joint(noise, belief, given)
    return both.posterior, both.likelihood


def symmetric_confusion(classes: int) -> Float[Array, "classes classes"]:
    """S of symmetric noise: uniform over the other classes."""
    return (1 - jnp.eye(classes, dtype=jnp.float32)) / (classes - 1)


@jax.jit
def most_likely_other(noise: Noise, belief: Float[Array, "rows classes"], given: Given) -> Int[Array, " rows"]:
    """The most likely true class of each row if its label is wrong."""
    return jnp.argmax(_wrong(noise, belief, given) + TINY * belief * _others(belief, given), axis=1)


def estimate_noise(
    prior: Noise, belief: Float[Array, "rows classes"], given: Given, repeats: Float[Array, " rows"], steps: int = 3
) -> Noise:
    """The noise under which these labels are most likely, by expectation maximisation from `prior`.

    `repeats` is the sample weight of each row. A rate is the share of wrong labels in its cell, where the prior counts
    as `PRIOR_ROWS` rows. S is computed by `estimate_confusion`, after every few updates of the rates.
    """
    noise = prior
    for _ in range(steps):
        rates, wrong = _maximise(noise, prior.rates, belief, given, repeats)
        noise = Noise(rates, jnp.asarray(estimate_confusion(np.asarray(wrong)).astype(rates.dtype)))
    return noise


@_compile.jit
def _maximise(
    noise: Noise, prior: Array, belief: Float[Array, "rows classes"], given: Given, repeats: Float[Array, " rows"]
) -> tuple[Float[Array, "groups classes"], Float[Array, "classes classes"]]:
    """The rates after ten rounds, and the expected number of rows of each class that are labelled as each other
    class."""
    groups, classes = prior.shape
    cell = given.groups * classes + given.labels

    def expected(rates: Array) -> tuple[Array, Array]:
        now = noise._replace(rates=rates)
        both = joint(now, belief, given)
        shares = _wrong(now, belief, given) * (repeats / both.likelihood)[:, None]
        wrong = jax.ops.segment_sum(shares, cell, groups * classes).reshape(groups, classes, classes)
        right = jax.ops.segment_sum(repeats * both.posterior, cell, groups * classes).reshape(groups, classes)
        return jnp.swapaxes(wrong, 1, 2), right  # by group, true class, given class

    def update(_: int, rates: Array) -> Array:
        wrong, right = expected(rates)
        mistakes = jnp.sum(wrong, axis=2)
        return (mistakes + PRIOR_ROWS * prior) / (mistakes + right + PRIOR_ROWS)

    rates = jax.lax.fori_loop(0, 10, update, noise.rates)
    return rates, jnp.sum(expected(rates)[0], axis=0)


def estimate_confusion(counts: Float[np.ndarray, "classes classes"]) -> Float[np.ndarray, "classes classes"]:
    """S from the numbers of rows of class t labelled g, shrunk towards uniform as far as these numbers are uniform.

    Each row of S has a Dirichlet prior with the same pseudo-count for all other classes: the one under which the
    numbers are most likely (empirical Bayes). Symmetric noise gives a large pseudo-count, and the symmetric S; if all
    labels of a class go wrong to the same other class, it is small.

    >>> print(estimate_confusion(np.array([[0, 300, 0], [0, 0, 300], [300, 0, 0]])).round(2))
    [[0. 1. 0.]
     [0. 0. 1.]
     [1. 0. 0.]]
    """
    classes = len(counts)
    others = ~np.eye(classes, dtype=bool)
    wrong = np.asarray(counts, np.float64)[others].reshape(classes, classes - 1)
    totals = wrong.sum(axis=1)
    pseudo = np.geomspace(0.01, 1e4, 31)
    evidence = [
        np.sum(gammaln(a * (classes - 1)) - gammaln(a * (classes - 1) + totals))
        + np.sum(gammaln(a + wrong) - gammaln(a))
        for a in pseudo
    ]
    best = pseudo[int(np.argmax(evidence))]
    confusion = np.zeros((classes, classes))
    confusion[others] = ((wrong + best) / (totals[:, None] + best * (classes - 1))).ravel()
    return confusion


def _own(table: Float[Array, "rows classes"], labels: Int[Array, " rows"]) -> Float[Array, " rows"]:
    return jnp.take_along_axis(table, labels[:, None], axis=1)[:, 0]


def _wrong(noise: Noise, belief: Float[Array, "rows classes"], given: Given) -> Float[Array, "rows classes"]:
    """P(true = t, given | u) for t != given."""
    return belief * noise.rates[given.groups] * noise.confusion.T[given.labels]


def _others(belief: Float[Array, "rows classes"], given: Given) -> Float[Array, "rows classes"]:
    return 1 - jax.nn.one_hot(given.labels, belief.shape[1], dtype=belief.dtype)
