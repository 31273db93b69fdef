r"""A symmetric H from pairs (s, H s): limited-memory quasi-Newton updates, on flat vectors.

Two uses:

- `Pairs.precondition` is a preconditioner for H from the pairs that earlier CG solves left behind (Morales and Nocedal,
  "Automatic preconditioning by limited memory quasi-Newton updating", 2000);
- `model` is the matrix B = sigma I + Q (T - sigma I) Q' itself, with Q an orthonormal basis of the span of all pairs
  and T = Q'BQ small, for steps that need B u rather than a solve.

Only pairs of positive curvature may be pushed, so both are positive definite; neither changes with the lengths of s.

**The preconditioner** is the inverse BFGS matrix M of the pairs, started from gamma I. A block of pairs turns a matrix
M into V'MV + S' R^-T D R^-1 S with V = I - Q' R^-1 S, where the rows of S and Q are the pairs, oldest first, R is the
upper triangle of S Q', and D its diagonal (Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their
use in limited memory methods", 1994). So M r takes two loops over the blocks, as L-BFGS takes over pairs:

    newest to oldest:    a = R^-1 S t,    t <- t - Q' a          (from t = r)
    oldest to newest:    z <- z + S' R^-T (D a - Q z)            (from z = gamma t)

And tau r is added to M r, with tau a hundredth of 1 / lambda_max(H), estimated from the newest pairs. Where M is close
to H^-1 that changes nothing: (M + tau I) H has eigenvalues between 1 and 1.01. But M may be wrong, because H was far
larger where some pairs were met than it is now. Along these M is nearly 0: errors would be hidden from <r, M r>, and CG
would never move there. With tau r they are visible, and the first long step of CG shows how large they are.

Larger blocks mean fewer and larger products, which run faster, but R of many pairs, above all of more than n, is so
badly conditioned that its inverse means nothing. Blocks of a few pairs are a good compromise. A new pair adds a last
row and column to the R of its block; R^-1 gains the column -R^-1 (S q) / <s, q> and the diagonal entry 1 / <s, q>.
If there is no room left, the oldest block is emptied.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proxbi import _tree
from proxbi._place import HERE
from proxbi._tree import Scalar

_BLOCK = 8  # pairs: R of so many is well conditioned, and the two loops are eight times shorter
_BLOCKS = 4  # at least, except for very few pairs: emptying one must not lose most of the curvature
_MOST_NUMBERS = 4e7  # kept as pairs
_SEEN = 0.01  # of 1 / lambda_max(H): nothing is smaller in M
_EXACT = jax.lax.Precision.HIGHEST  # accelerators would round the factors


class Pairs(NamedTuple):
    """A ring buffer of blocks of pairs."""

    steps: Float[Array, "blocks pairs n"]
    products: Float[Array, "blocks pairs n"]
    curvatures: Float[Array, "blocks pairs"]
    """<s, H s>; 0 marks an empty place."""
    triangles: Float[Array, "blocks pairs pairs"]
    """R^-1 of each block."""
    pushed: Int[Array, ""]

    @property
    def newest(self) -> tuple[Array, Array, Scalar]:
        """s, H s and <s, H s> of the newest pair."""
        place = _place(self, self.pushed - 1)
        return self.steps[place], self.products[place], self.curvatures[place]

    def precondition(self, r: Float[Array, " n"]) -> Float[Array, " n"]:
        """M r, close to H^-1 r on the span of the pairs; r without any."""
        blocks = len(self.curvatures)
        latest = _place(self, self.pushed - 1)[0]
        used = jnp.minimum(latest + jnp.where(self.pushed > self.curvatures.size, blocks, 1), blocks)

        def down(age: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            t, factors = at
            block = (latest - age) % blocks
            a = _product(self.triangles[block], _product(self.steps[block], t))
            return t - _product(a, self.products[block]), factors.at[block].set(a)

        def up(k: Array, z: Array) -> Array:
            block = (latest - (used - 1 - k)) % blocks
            off = self.curvatures[block] * factors[block] - _product(self.products[block], z)
            return z + _product(_product(off, self.triangles[block]), self.steps[block])

        t, factors = jax.lax.fori_loop(0, used, down, (r, jnp.zeros_like(self.curvatures)))
        _, product, curvature = self.newest
        # <s, q> / |q|^2 of the newest pair, the smaller of the two usual choices
        gamma = jnp.where(curvature > 0, curvature / jnp.where(curvature > 0, product @ product, 1), 1)
        return jax.lax.fori_loop(0, used, up, gamma * t) + self._floor(latest) * r

    def _floor(self, latest: Array) -> Scalar:
        """tau, from the smallest <s, q> / |q|^2 of the newest block."""
        squares, curvatures = jnp.sum(self.products[latest] ** 2, axis=1), self.curvatures[latest]
        smallest = jnp.min(jnp.where(curvatures > 0, curvatures / jnp.where(curvatures > 0, squares, 1), jnp.inf))
        return jnp.where(jnp.isfinite(smallest), _SEEN * smallest, 0)


def empty(like: Float[Array, " n"], pairs: int) -> Pairs:
    """Room for `pairs` pairs of vectors shaped as `like`, for fewer where these are very large, and for a block more,
    as one is emptied at a time.
    """
    pairs = max(1, min(pairs, int(_MOST_NUMBERS) // (2 * like.size)))
    size = max(1, min(_BLOCK, pairs // _BLOCKS))
    blocks = -(-pairs // size) + (size > 1)
    stack, small = jnp.zeros((blocks, size, like.size), like.dtype), jnp.zeros((blocks, size, size), like.dtype)
    return Pairs(stack, stack, small[:, 0], small, jnp.int32(0))


def push(pairs: Pairs, step: Array, product: Array, curvature: Scalar, keep: Bool[Array, ""]) -> Pairs:
    """Replace the oldest pair by this one, of curvature <s, H s>; unchanged unless `keep`."""
    block, row = place = _place(pairs, pairs.pushed)
    weight = 1 / jnp.where(keep, curvature, 1)
    fresh = row == 0
    inverse = jnp.where(fresh, 0, pairs.triangles[block])
    column = -weight * _product(inverse, _product(pairs.steps[block], product))
    inverse = inverse.at[:, row].set(column.at[row].set(weight))
    curvatures = jnp.where(fresh, 0, pairs.curvatures[block]).at[row].set(curvature)

    def write(stack: Array, where: Any, new: Array) -> Array:  # in place: the choice is between entries, not stacks
        return stack.at[where].set(jnp.where(keep, new, stack[where]))

    return Pairs(
        write(pairs.steps, place, step),
        write(pairs.products, place, product),
        write(pairs.curvatures, block, curvatures),
        write(pairs.triangles, block, inverse),
        pairs.pushed + keep.astype(jnp.int32),
    )


def _place(pairs: Pairs, number: Array) -> tuple[Array, Array]:
    """The block and the row of a pair, by its number."""
    blocks, size = pairs.curvatures.shape
    return number // size % blocks, number % size


def _product(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, precision=_EXACT)


def steepness(pairs: Pairs) -> Scalar:
    """|H s| / |s| of the newest pair; 0 without pairs."""
    step, product, _ = pairs.newest
    length, size = _tree.norms(step, product)
    return size / jnp.where(length > 0, length, 1)


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


def model(pairs: Pairs, orthonormal: Callable[[Array], Array] = HERE.orthonormal) -> Model:
    """The BFGS matrix of the pairs, oldest first, started from a multiple of I: |q| / |s| of the newest pair, and 0
    without pairs. (Of the two usual choices <s, q>/<s, s> makes steps too long and <q, q>/<s, q> too short: this is
    their geometric mean.) Updates are carried out on T alone, r = min(n, 2 pairs) rows, where they are exact.
    `orthonormal` makes Q from the columns to span.
    """
    count, n = pairs.curvatures.size, pairs.steps.shape[-1]
    order = (pairs.pushed + jnp.arange(count, dtype=pairs.pushed.dtype)) % count
    stacks = (pairs.steps.reshape(count, n), pairs.products.reshape(count, n), pairs.curvatures.reshape(count))
    steps, products, curvatures = (stack[order] for stack in stacks)
    sigma = steepness(pairs)
    basis = orthonormal(jnp.concatenate([steps, products]).T)
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
