r"""What pairs (s, H s) say about a symmetric H: limited-memory quasi-Newton updates.

Pairs are kept with |s| = 1, so that no scale of the problem makes an inner product overflow or vanish. Two uses:

- `inverse` is a preconditioner for H from the pairs that earlier CG solves left behind (two-loop recursion; Morales
  and Nocedal, "Automatic preconditioning by limited memory quasi-Newton updating", 2000);
- `model` is the matrix B = sigma I + Q (T - sigma I) Q' itself, with Q an orthonormal basis of the span of all pairs
  and T = Q'BQ small, for steps that need B u rather than a solve.

Every pair kept has positive curvature, so both are positive definite.
"""

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


def inverse(secants: Secants, r: PyTree) -> PyTree:
    """M r with M close to the inverse of H on the span of the pairs: the two-loop recursion of L-BFGS."""
    pairs = len(secants.curvatures)

    def pair(age: Any) -> tuple[PyTree, PyTree, Scalar]:
        place = (secants.pushed - 1 - age) % pairs
        step, product = (jax.tree.map(lambda leaf: leaf[place], t) for t in (secants.steps, secants.products))
        curvature = secants.curvatures[place]
        return step, product, jnp.where(curvature > 0, 1 / jnp.where(curvature > 0, curvature, 1), 0)

    def down(age: Any, at: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        q, lengths = at
        step, product, weight = pair(age)
        length = weight * _tree.dot(step, q)
        return _tree.axpy(-length, product, q), lengths.at[age].set(length)

    def up(k: Any, q: PyTree) -> PyTree:
        age = pairs - 1 - k
        step, product, weight = pair(age)
        return _tree.axpy(lengths[age] - weight * _tree.dot(product, q), step, q)

    q, lengths = jax.lax.fori_loop(0, pairs, down, (r, jnp.zeros_like(secants.curvatures)))
    _, newest, weight = pair(0)
    squared = weight * _tree.dot(newest, newest)  # <q, q> / <s, q>: the curvature of the newest pair, from above
    return jax.lax.fori_loop(0, pairs, up, _tree.scale(jnp.where(squared > 0, 1 / squared, 1), q))


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
