"""Probes of a problem: does a gradient jump, does the objective grow?"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from proxbi import _tree
from proxbi.regularizers import Regularizer
from proxbi.theory.reference import Reference

PIECES = 32
EXPLODES = 4.0
"""A quotient that grows by more than this on a 32 times shorter interval is unbounded: for a Lipschitz map it
converges, at a jump it grows by 32, for a square root by 5.7."""


class Steepness(NamedTuple):
    """The largest |F(z) - F(z')| / |z - z'| on ever shorter intervals of a segment."""

    quotients: Float[np.ndarray, "3"]

    @property
    def lipschitz(self) -> float:
        """A lower bound of the Lipschitz constant."""
        return float(np.max(self.quotients))

    @property
    def finite(self) -> bool:
        """Whether F is finite wherever it was evaluated."""
        return bool(np.all(np.isfinite(self.quotients)))

    @property
    def bounded(self) -> bool:
        """Whether the quotients converge instead of growing without bound."""
        finer, coarser = self.quotients[-1], self.quotients[-2]
        return self.finite and bool(finer <= EXPLODES * max(coarser, np.finfo(float).tiny))


Map = Callable[[PyTree], PyTree]


def steepness(
    functions: Mapping[str, Map], at: PyTree, directions: dict[str, PyTree]
) -> dict[tuple[str, str], Steepness]:
    """For each function and direction: split the segment from `at` to `at` + direction, and half as much on either
    side, into 32 intervals, take the one with the largest quotient, split it, and repeat once.
    """
    found = jax.tree.map(lambda quotients: np.asarray(quotients, float), _zoom(functions, at, directions))
    return {(f, d): Steepness(quotients) for f, of_f in found.items() for d, quotients in of_f.items()}


@eqx.filter_jit
def _zoom(functions: Mapping[str, Map], at: PyTree, directions: dict[str, PyTree]) -> dict[str, dict[str, Array]]:
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *directions.values())
    found = {name: jax.lax.map(Partial(_quotients, function, at), stacked) for name, function in functions.items()}
    return {name: dict(zip(directions, quotients, strict=True)) for name, quotients in found.items()}


def _quotients(function: Map, at: PyTree, direction: PyTree) -> Float[Array, "3"]:
    length = _tree.norm(direction)
    unit = jnp.where(length > 0, length, 1)
    cuts = jnp.arange(PIECES + 1, dtype=length.dtype) / PIECES

    def cut(segment: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        low, width = segment
        places = low + width * cuts
        values = jax.lax.map(lambda t: ravel_pytree(function(_tree.axpy(t, direction, at)))[0], places)
        change = jnp.linalg.norm(jnp.diff(values, axis=0), axis=1)
        noise = 100 * jnp.finfo(length.dtype).eps * jnp.max(jnp.linalg.norm(values, axis=1))
        change = jnp.where(change <= noise, 0, change)  # NaN stays
        steepest = jnp.argmax(change)
        narrower = width / PIECES
        return (places[steepest], narrower), change[steepest] / (narrower * unit)

    # Both ends of the segment are well inside, and not at the end of an interval.
    ends = jnp.asarray(-0.53, length.dtype), jnp.asarray(2.07, length.dtype)
    return jax.lax.scan(cut, ends, length=3)[1]


class Ray(NamedTuple):
    """Phi + h along x0 + r d, with entries +-1 in d, at three radii r, each ten times the one before."""

    values: Float[np.ndarray, "3"]

    @property
    def known(self) -> bool:
        """Whether the values could be computed (infinity, outside the domain of h, counts as known)."""
        return not bool(np.any(np.isnan(self.values)))

    @property
    def grows(self) -> bool:
        """Whether the last tenfold distance raised the value: level sets are bounded only if it does on all rays."""
        _, near, far = self.values
        return bool(far == np.inf or far - near > 1e-3 * (1 + abs(near)))

    @property
    def falls(self) -> bool:
        """Whether the value falls at least in proportion to the distance: then it has no lower bound."""
        first, near, far = self.values
        return bool(np.all(np.isfinite(self.values)) and far - near < 5 * (near - first) < -1e-3 * (1 + abs(first)))


def rays(h: Regularizer, reference: Reference, x0: PyTree, key: PRNGKeyArray) -> list[Ray]:
    """Phi + h along a few rays from x0: all ones, all minus ones, and two random sign patterns and their opposites."""
    return [Ray(values) for values in np.asarray(_along(h, reference, x0, key), float)]


@eqx.filter_jit
def _along(h: Regularizer, reference: Reference, x0: PyTree, key: PRNGKeyArray) -> Float[Array, "rays 3"]:
    flat, unravel = ravel_pytree(x0)
    signs = jnp.concatenate(
        [jnp.ones((1, flat.size), flat.dtype), jax.random.rademacher(key, (2, flat.size), flat.dtype)]
    )
    directions = jnp.concatenate([signs, -signs])
    radii = (1 + jnp.max(jnp.abs(flat))) * jnp.asarray([10, 100, 1000], flat.dtype)
    points = flat + radii[None, :, None] * directions[:, None, :]

    def value(point: Array) -> Array:
        x = unravel(point)
        penalty = h.value(x)
        return jnp.where(jnp.isposinf(penalty), jnp.inf, reference(x).value + penalty)

    return jax.lax.map(value, points.reshape(-1, flat.size)).reshape(len(directions), 3)
