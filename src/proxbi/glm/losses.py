"""Losses of linear models: functions of the scores z = W x + b of a row and of its target, with two derivatives in z.

All are convex in z. A loss of your own is a subclass of `Loss`. Only `value` is required: derivatives in z are then
computed by automatic differentiation, which needs no pass over X.
"""

from abc import abstractmethod
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from proxbi._module import Module

Scores = Float[Array, "rows outputs"]


class Loss(Module):
    """l(z, t) of each row, and its derivatives in z.

    Examples: `Softmax`, `linear_model`.
    """

    @abstractmethod
    def value(self, scores: Scores, targets: Array) -> Float[Array, " rows"]:
        """l of each row."""

    def slope(self, scores: Scores, targets: Array) -> Scores:
        """l' of each row."""
        return jax.grad(lambda z: jnp.sum(self.value(z, targets)))(scores)

    def curvature(self, scores: Scores, targets: Array) -> Callable[[Scores], Scores]:
        """The map s -> l'' s of each row; the part that depends on z alone is computed once."""
        return jax.linearize(lambda z: self.slope(z, targets), scores)[1]

    def total_curvature(
        self, scores: Scores, targets: Array, weights: Float[Array, " rows"]
    ) -> Float[Array, "outputs outputs"]:
        """sum_i w_i l''_i."""
        curvature, units = self.curvature(scores, targets), jnp.eye(scores.shape[1], dtype=scores.dtype)
        return jax.lax.map(lambda unit: weights @ curvature(jnp.broadcast_to(unit, scores.shape)), units)


class Softmax(Loss):
    """Cross-entropy: l = log sum_k e^{z_k} - z_t for a class t = 0, 1, ...; l' = p - e_t, l'' = diag(p) - p p'.

    >>> print(Softmax().value(jnp.zeros((1, 4)), jnp.array([2])))  # log 4
    [1.386]
    """

    def value(self, scores: Scores, targets: Array) -> Float[Array, " rows"]:
        return jax.nn.logsumexp(scores, axis=1) - jnp.sum(jnp.where(_hot(scores, targets), scores, 0), axis=1)

    def slope(self, scores: Scores, targets: Array) -> Scores:
        return jax.nn.softmax(scores, axis=1) - _hot(scores, targets).astype(scores.dtype)

    def curvature(self, scores: Scores, targets: Array) -> Callable[[Scores], Scores]:
        p = jax.nn.softmax(scores, axis=1)
        return lambda s: p * (s - jnp.sum(p * s, axis=1, keepdims=True))

    def total_curvature(
        self, scores: Scores, targets: Array, weights: Float[Array, " rows"]
    ) -> Float[Array, "outputs outputs"]:
        p = jax.nn.softmax(scores, axis=1)
        return jnp.diag(weights @ p) - (weights[:, None] * p).T @ p


class Logistic(Loss):
    """l = sum_k log(1 + e^{z_k}) - t_k z_k for t_k in [0, 1]: one binary target per output.

    >>> print(Logistic().value(jnp.zeros((1, 1)), jnp.array([[1.0]])))  # log 2
    [0.693]
    """

    def value(self, scores: Scores, targets: Array) -> Float[Array, " rows"]:
        return jnp.sum(jax.nn.softplus(scores) - targets * scores, axis=1)

    def slope(self, scores: Scores, targets: Array) -> Scores:
        return jax.nn.sigmoid(scores) - targets

    def curvature(self, scores: Scores, targets: Array) -> Callable[[Scores], Scores]:
        spread = jax.nn.sigmoid(scores) * jax.nn.sigmoid(-scores)  # p (1 - p), exact where p is nearly 1
        return lambda s: spread * s


class Squared(Loss):
    """l = |z - t|^2 / 2.

    >>> print(Squared().value(jnp.array([[3.0]]), jnp.array([[1.0]])))
    [2.]
    """

    def value(self, scores: Scores, targets: Array) -> Float[Array, " rows"]:
        return 0.5 * jnp.sum((scores - targets) ** 2, axis=1)

    def slope(self, scores: Scores, targets: Array) -> Scores:
        return scores - targets

    def curvature(self, scores: Scores, targets: Array) -> Callable[[Scores], Scores]:
        return lambda s: s


def _hot(scores: Scores, targets: Array) -> Array:
    """One-hot targets as a comparison: gathers and scatters are slow on every device."""
    return targets[:, None] == jnp.arange(scores.shape[1], dtype=targets.dtype)[None]
