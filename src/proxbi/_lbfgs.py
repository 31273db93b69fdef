r"""What pairs (s, H s) say about a symmetric H: limited-memory quasi-Newton updates.

Pairs are kept with |s| = 1, so that no scale of the problem makes an inner product overflow or vanish. Two uses:

- `Inverse` is a preconditioner for H from the pairs that earlier CG solves left behind (Morales and Nocedal,
  "Automatic preconditioning by limited memory quasi-Newton updating", 2000);
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


class Pairs(NamedTuple):
    """A ring buffer of pairs; leaves have a leading axis for the pairs."""

    steps: PyTree
    products: PyTree
    curvatures: Float[Array, " pairs"]
    """<s, H s>; 0 marks an empty place."""
    pushed: Int[Array, ""]


def empty(like: PyTree, pairs: int) -> Pairs:
    """Room for `pairs` pairs of vectors shaped as `like`."""
    stack = jax.tree.map(lambda leaf: jnp.zeros((pairs, *leaf.shape), leaf.dtype), like)
    dtype = jnp.result_type(*jax.tree.leaves(like))
    return Pairs(stack, stack, jnp.zeros(pairs, dtype), jnp.int32(0))


def push(pairs: Pairs, step: PyTree, product: PyTree, least_cosine: float) -> tuple[Pairs, Bool[Array, ""]]:
    """The pair in the place of the oldest, and whether it was kept: it is not where the cosine between s and H s is
    at most `least_cosine`, because H is not positive along s or rounding hides that it is.
    """
    length = _tree.norm(step)
    unit = jnp.where(length > 0, length, 1)
    step, product = _tree.scale(1 / unit, step), _tree.scale(1 / unit, product)
    curvature = _tree.dot(step, product)
    size = _tree.norm(product)
    keep = (length > 0) & (curvature > least_cosine * size) & (size < float(jnp.finfo(size.dtype).max) ** _OVERFLOWS)
    place = pairs.pushed % len(pairs.curvatures)

    def write(stack: Array, new: Array) -> Array:
        return stack.at[place].set(jnp.where(keep, new, stack[place]))

    return Pairs(
        jax.tree.map(write, pairs.steps, step),
        jax.tree.map(write, pairs.products, product),
        write(pairs.curvatures, curvature),
        pairs.pushed + keep.astype(jnp.int32),
    ), keep


_OVERFLOWS = 0.25  # power of the largest number: products of four such numbers overflow


# The inverse BFGS matrix M of the pairs, started from gamma I, is applied in one of two ways, which differ by rounding
# only. The two loops of L-BFGS go through the pairs one by one: best on a CPU, where a step of a loop is cheap, and
# hopeless on an accelerator, where each is several launches. There the compact form is used (Byrd, Nocedal, Schnabel,
# "Representations of quasi-Newton matrices and their use in limited memory methods", 1994): with the pairs as rows of S
# and Q, oldest first, R the upper triangle of S Q' and D its diagonal,
#
#     M r = gamma t + S' R^-T (D a - gamma Q t),     a = R^-1 S r,     t = r - Q' a,
#
# four matrix products. As <r, M r> = gamma <t, t> + <a, D a>, rounding does not make it negative.
class Inverse(NamedTuple):
    """M, close to the inverse of H on the span of the pairs; `inverse(pairs) @ r` applies it."""

    pairs: Pairs
    triangle: Float[Array, "pairs pairs"]
    """R^-1, its rows and columns in the places of the pairs; not used on a CPU."""

    def __matmul__(self, r: PyTree) -> PyTree:
        return jax.lax.platform_dependent(self, r, cpu=two_loops, default=compact)


def inverse(pairs: Pairs) -> Inverse:
    """The inverse BFGS matrix of the pairs; the identity without any."""
    return Inverse(pairs, jax.lax.platform_dependent(pairs, cpu=_no_triangle, default=inverted_triangle))


def forgotten(m: Inverse | None) -> Inverse | None:
    """The same without pairs."""
    if m is None:
        return None
    pairs = m.pairs._replace(curvatures=jnp.zeros_like(m.pairs.curvatures))
    return Inverse(pairs, jnp.zeros_like(m.triangle))


def two_loops(m: Inverse, r: PyTree) -> PyTree:
    """M r, pair by pair."""
    count = len(m.pairs.curvatures)

    def pair(age: Any) -> tuple[PyTree, PyTree, Scalar]:
        place = (m.pairs.pushed - 1 - age) % count
        step, product = (jax.tree.map(lambda leaf: leaf[place], t) for t in (m.pairs.steps, m.pairs.products))
        return step, product, _reciprocal(m.pairs.curvatures[place])

    def down(age: Any, at: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        t, lengths = at
        step, product, weight = pair(age)
        length = weight * _tree.dot(step, t)
        return _tree.axpy(-length, product, t), lengths.at[age].set(length)

    def up(k: Any, t: PyTree) -> PyTree:
        age = count - 1 - k
        step, product, weight = pair(age)
        return _tree.axpy(lengths[age] - weight * _tree.dot(product, t), step, t)

    t, lengths = jax.lax.fori_loop(0, count, down, (r, jnp.zeros_like(m.pairs.curvatures)))
    return jax.lax.fori_loop(0, count, up, _tree.scale(_gamma(m.pairs), t))


def compact(m: Inverse, r: PyTree) -> PyTree:
    """M r by matrix products."""
    pairs, gamma = m.pairs, _gamma(m.pairs)
    a = jnp.dot(m.triangle, _inner(pairs.steps, r), precision=_EXACT)
    t = jax.tree.map(lambda leaf, stack: leaf - _combined(a, stack), r, pairs.products)
    c = jnp.dot(m.triangle.T, pairs.curvatures * a - gamma * _inner(pairs.products, t), precision=_EXACT)
    return jax.tree.map(lambda leaf, stack: gamma.astype(leaf.dtype) * leaf + _combined(c, stack), t, pairs.steps)


def inverted_triangle(pairs: Pairs) -> Float[Array, "pairs pairs"]:
    """R^-1, row by row from the newest pair on: row i of R R^-1 = I is d_i x_i + sum over newer j of R_ij x_j = e_i."""
    count, weights = len(pairs.curvatures), _reciprocal(pairs.curvatures)
    place = jnp.arange(count, dtype=pairs.pushed.dtype)
    age = (pairs.pushed - 1 - place) % count
    mixed = jax.vmap(lambda s: _inner(pairs.products, s))(pairs.steps)
    newer = jnp.where(age[None, :] < age[:, None], mixed, 0)
    identity = jnp.eye(count, dtype=weights.dtype)

    def row(k: Any, rows: Array) -> Array:
        i = (pairs.pushed - 1 - k) % count
        return rows.at[i].set(weights[i] * (identity[i] - jnp.dot(newer[i], rows, precision=_EXACT)))

    return jax.lax.fori_loop(0, count, row, jnp.zeros_like(identity))


def _no_triangle(pairs: Pairs) -> Float[Array, "pairs pairs"]:
    return jnp.zeros((len(pairs.curvatures), len(pairs.curvatures)), pairs.curvatures.dtype)


def _gamma(pairs: Pairs) -> Scalar:
    """<s, q> / |q|^2 of the newest pair, the smaller of the two usual choices; 1 without pairs."""
    newest = (pairs.pushed - 1) % len(pairs.curvatures)
    product = jax.tree.map(lambda stack: stack[newest], pairs.products)
    squared = _reciprocal(pairs.curvatures[newest]) * _tree.dot(product, product)
    return jnp.where(squared > 0, _reciprocal(squared), 1)


def _reciprocal(a: Array) -> Array:
    """1 / a, and 0 where a is not positive."""
    return jnp.where(a > 0, 1 / jnp.where(a > 0, a, 1), 0)


_EXACT = jax.lax.Precision.HIGHEST  # accelerators would round the factors


def _inner(stack: PyTree, vector: PyTree) -> Float[Array, " pairs"]:
    """The inner product of each of the stack with the vector."""
    products = jax.tree.map(lambda s, v: jnp.tensordot(s, v, v.ndim, precision=_EXACT), stack, vector)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)), axis=0)


def _combined(factors: Float[Array, " pairs"], stack: Float[Array, "pairs *shape"]) -> Float[Array, "*shape"]:
    """The sum of all of the stack, each times its factor."""
    return jnp.tensordot(factors.astype(stack.dtype), stack, 1, precision=_EXACT)


def newest(pairs: Pairs) -> Scalar:
    """|H s| / |s| of the newest pair; 0 without pairs."""
    place = (pairs.pushed - 1) % len(pairs.curvatures)
    return _tree.norm(jax.tree.map(lambda stack: stack[place], pairs.products))


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


def model(pairs: Pairs) -> Model:
    """The BFGS matrix of the pairs, oldest first, started from a multiple of I: |q| / |s| of the newest pair, and 0
    without pairs. (Of the two usual choices <s, q>/<s, s> makes steps too long and <q, q>/<s, q> too short: this is
    their geometric mean.) Updates are carried out on T alone, r = min(n, 2 pairs) rows, where they are exact.
    """
    count = len(pairs.curvatures)
    order = (pairs.pushed + jnp.arange(count, dtype=pairs.pushed.dtype)) % count
    steps, products, curvatures = pairs.steps[order], pairs.products[order], pairs.curvatures[order]
    sigma = jnp.where(curvatures[-1] > 0, jnp.linalg.norm(products[-1]), 0)
    basis = jnp.linalg.qr(jnp.concatenate([steps, products]).T)[0]
    small_steps, small_products = steps @ basis, products @ basis

    def update(k: Any, b: Array) -> Array:
        s, q, curvature = small_steps[k], small_products[k], curvatures[k]
        bs = b @ s
        valid = (curvature > 0) & (s @ bs > 0)
        old, new = jnp.where(valid, s @ bs, 1), jnp.where(valid, curvature, 1)
        return jnp.where(valid, b - jnp.outer(bs, bs) / old + jnp.outer(q, q) / new, b)

    identity = jnp.eye(basis.shape[1], dtype=basis.dtype)
    inner = jax.lax.fori_loop(0, count, update, sigma * identity)
    return Model(sigma, basis, inner - sigma * identity)
