r"""What pairs (s, H s) say about a symmetric H: limited-memory quasi-Newton updates.

Pairs are kept with |s| = 1, so that no scale of the problem makes an inner product overflow or vanish. Two uses:

- `inverse` is a preconditioner for H from the pairs that earlier CG solves left behind (Morales and Nocedal,
  "Automatic preconditioning by limited memory quasi-Newton updating", 2000);
- `model` is the matrix B = sigma I + Q (T - sigma I) Q' itself, with Q an orthonormal basis of the span of all pairs
  and T = Q'BQ small, for steps that need B u rather than a solve.

Every pair kept has positive curvature, so both are positive definite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from proxbi import _tree
from proxbi._tree import Scalar


class Secants(NamedTuple):
    """A ring buffer of pairs; leaves have a leading axis for the pairs."""

    steps: PyTree
    products: PyTree
    curvatures: Float[Array, " pairs"]
    """<s, H s>; 0 marks an empty place."""
    pushed: Int[Array, ""]


def empty(like: PyTree, pairs: int) -> Secants:
    """Room for `pairs` pairs of vectors shaped as `like`."""
    stack = jax.tree.map(lambda leaf: jnp.zeros((pairs, *leaf.shape), leaf.dtype), like)
    dtype = jnp.result_type(*jax.tree.leaves(like))
    return Secants(stack, stack, jnp.zeros(pairs, dtype), jnp.int32(0))


def push(secants: Secants, step: PyTree, product: PyTree, least_cosine: float) -> tuple[Secants, Bool[Array, ""]]:
    """The pair in the place of the oldest, and whether it was kept: it is not where the cosine between s and H s is
    at most `least_cosine`, because H is not positive along s or rounding hides that it is.
    """
    length = _tree.norm(step)
    unit = jnp.where(length > 0, length, 1)
    step, product = _tree.scale(1 / unit, step), _tree.scale(1 / unit, product)
    curvature = _tree.dot(step, product)
    size = _tree.norm(product)
    keep = (length > 0) & (curvature > least_cosine * size) & jnp.isfinite(size)
    place = secants.pushed % len(secants.curvatures)

    def write(stack: Array, new: Array) -> Array:
        return stack.at[place].set(jnp.where(keep, new, stack[place]))

    return Secants(
        jax.tree.map(write, secants.steps, step),
        jax.tree.map(write, secants.products, product),
        write(secants.curvatures, curvature),
        secants.pushed + keep.astype(jnp.int32),
    ), keep


# The inverse BFGS matrix of all pairs, started from gamma I, in its compact form (Byrd, Nocedal, Schnabel,
# "Representations of quasi-Newton matrices and their use in limited memory methods", 1994, theorem 2.2). With the pairs
# scaled to <s, q> = 1 as rows of S and Y, oldest first, and U the upper triangle of S Y',
#
#     M = gamma I + S' U^-T (I + gamma Y Y') U^-1 S - gamma (S' U^-T Y + Y' U^-1 S).
#
# All of it is small but for S and Y themselves. The usual two loops would go through the pairs one by one for every r,
# which leaves an accelerator idle.
def inverse(secants: Secants) -> Callable[[PyTree], PyTree]:
    """The map r -> M r with M close to the inverse of H on the span of the pairs."""
    pairs = len(secants.curvatures)
    place = jnp.arange(pairs, dtype=secants.pushed.dtype)
    oldest_first, back = (secants.pushed + place) % pairs, (place - secants.pushed) % pairs
    filled = secants.curvatures > 0
    unit = jnp.where(filled, 1 / jnp.sqrt(jnp.where(filled, secants.curvatures, 1)), 0)
    units, identity = jnp.tile(unit, 2), jnp.eye(pairs, dtype=unit.dtype)

    both = jax.tree.map(lambda s, q: jnp.concatenate([s, q]), secants.steps, secants.products)
    gram = units[:, None] * jax.vmap(lambda one: _inner(both, one))(both) * units
    mixed, squares = gram[:pairs, pairs:], gram[pairs:, pairs:]
    newest = squares[oldest_first[-1], oldest_first[-1]]
    gamma = jnp.where(newest > 0, 1 / jnp.where(newest > 0, newest, 1), 1)
    upper = jnp.triu(mixed[oldest_first][:, oldest_first], 1) + identity
    inverted = jax.scipy.linalg.solve_triangular(upper, identity)[back][:, back]
    middle = inverted.T @ (identity + gamma * squares) @ inverted
    small = jnp.block([[middle, -gamma * inverted.T], [-gamma * inverted, jnp.zeros_like(identity)]])

    def apply(r: PyTree) -> PyTree:
        factors = units * (small @ (units * _inner(both, r)))
        return jax.tree.map(lambda leaf, stack: gamma.astype(leaf.dtype) * leaf + _combined(factors, stack), r, both)

    return apply


_EXACT = jax.lax.Precision.HIGHEST  # accelerators would round the factors


def _inner(stack: PyTree, vector: PyTree) -> Float[Array, " pairs"]:
    """The inner product of each of the stack with the vector."""
    products = jax.tree.map(lambda s, v: jnp.tensordot(s, v, v.ndim, precision=_EXACT), stack, vector)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)), axis=0)


def _combined(factors: Float[Array, " pairs"], stack: Float[Array, "pairs *shape"]) -> Float[Array, "*shape"]:
    return jnp.tensordot(factors.astype(stack.dtype), stack, 1, precision=_EXACT)


class Model(NamedTuple):
    """B = sigma I + Q (T - sigma I) Q' in the space of flat vectors."""

    sigma: Scalar
    basis: Float[Array, "n r"]
    inner: Float[Array, "r r"]
    """T - sigma I."""

    def __matmul__(self, u: Float[Array, " n"]) -> Float[Array, " n"]:
        return self.sigma * u + self.basis @ (self.inner @ (self.basis.T @ u))

    def scaled(self, factor: Any, shift: Any) -> "Model":
        """factor * B + shift * I."""
        return Model(factor * self.sigma + shift, self.basis, factor * self.inner)


def model(secants: Secants, sigma: Scalar) -> Model:
    """The BFGS matrix of the pairs, oldest first, started from a multiple of I: |q| / |s| of the newest pair, or
    `sigma` without pairs. (Of the two usual choices <s, q>/<s, s> is too bold and <q, q>/<s, q> too shy: this is their
    geometric mean.) Updates are carried out on T alone, r = min(n, 2 pairs) rows, where they are exact.
    """
    pairs = len(secants.curvatures)
    order = (secants.pushed + jnp.arange(pairs, dtype=secants.pushed.dtype)) % pairs
    steps, products, curvatures = secants.steps[order], secants.products[order], secants.curvatures[order]
    newest, filled = products[-1], curvatures[-1] > 0
    sigma = jnp.where(filled, jnp.linalg.norm(newest), sigma)
    basis = jnp.linalg.qr(jnp.concatenate([steps, products]).T)[0]
    small_steps, small_products = steps @ basis, products @ basis

    def update(k: Any, b: Array) -> Array:
        s, q, curvature = small_steps[k], small_products[k], curvatures[k]
        bs = b @ s
        valid = (curvature > 0) & (s @ bs > 0)
        old, new = jnp.where(valid, s @ bs, 1), jnp.where(valid, curvature, 1)
        return jnp.where(valid, b - jnp.outer(bs, bs) / old + jnp.outer(q, q) / new, b)

    identity = jnp.eye(basis.shape[1], dtype=basis.dtype)
    inner = jax.lax.fori_loop(0, pairs, update, sigma * identity)
    return Model(sigma, basis, inner - sigma * identity)
