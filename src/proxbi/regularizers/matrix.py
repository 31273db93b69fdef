"""Regularizers of matrices through their singular values or eigenvalues: every leaf of x is a matrix, or a stack of
them in the last two axes.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from proxbi._check import Number, as_float, non_negative, positive_int
from proxbi.regularizers._base import Leafwise, from_threshold, indicator, like

Matrix = Float[Array, "... m n"]
Spectrum = Float[Array, "... k"]


class Nuclear(Leafwise):
    r"""The nuclear norm, $h(X) = \lambda \sum_i \sigma_i(X)$; its prox soft-thresholds the singular values.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.

    Reference: Cai, Candes and Shen, *A singular value thresholding algorithm for matrix completion*, 2010.

    >>> import jax.numpy as jnp
    >>> print(Nuclear(1.0).prox(jnp.array([[0.0, 3.0], [0.5, 0.0]]), 1.0).round(5))
    [[0. 2.]
     [0. 0.]]
    """

    strength: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True

    def __check_init__(self) -> None:
        non_negative("strength", self.strength)

    def _value(self, x: Matrix) -> Array:
        singular = _singular_values(x)
        return like(self.strength, singular) * singular

    def _prox(self, x: Matrix, step: Array) -> Matrix:
        return _map_singular_values(_lower, _matrix(x), step * self.strength.astype(x.dtype))

    def _margin(self, x: Matrix, step: Array) -> Array:
        singular = _singular_values(x)
        return from_threshold(singular, step * like(self.strength, singular))

    def _conjugate(self, x: Matrix) -> Array:
        singular = _singular_values(x)
        strength = like(self.strength, singular)
        return indicator(singular - strength, strength)


class RankBall(Leafwise):
    r"""$\{X : \mathrm{rank}(X) \le r\}$; its prox keeps the r largest singular values.

    Tie: if $\sigma_r = \sigma_{r+1}$ the projection is not unique; the prox keeps the singular vectors that the SVD
    lists first. `value` takes a singular value for zero if it is below $1000\,\epsilon\,\sigma_1$.

    **Arguments:**

    - `rank`: an integer > 0; part of the structure, so that changing it recompiles.

    Reference: Eckart and Young, *The approximation of one matrix by another of lower rank*, 1936.

    >>> import jax.numpy as jnp
    >>> print(RankBall(1).prox(jnp.array([[0.0, 3.0], [0.5, 0.0]]), 1.0).round(5))
    [[0. 3.]
     [0. 0.]]
    """

    rank: int = eqx.field(static=True)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive_int("rank", self.rank)

    def _value(self, x: Matrix) -> Array:
        singular = _singular_values(x)
        return indicator(singular[..., self.rank :], singular[..., :1])

    def _prox(self, x: Matrix, step: Array) -> Matrix:
        size = min(_matrix(x).shape[-2:])
        kept = (jnp.arange(size) < self.rank).astype(x.dtype)
        return _map_singular_values(jnp.multiply, x, kept)


class PSD(Leafwise):
    r"""The symmetric positive semidefinite matrices; the prox symmetrises X and raises its negative eigenvalues to 0.

    `value` allows an asymmetry, and negative eigenvalues, of $1000\,\epsilon$ times the largest entry or eigenvalue.

    Reference: Higham, *Computing a nearest symmetric positive semidefinite matrix*, 1988.

    >>> import jax.numpy as jnp
    >>> print(PSD().prox(jnp.array([[0.0, 2.0], [0.0, 0.0]]), 1.0).round(5))
    [[0.5 0.5]
     [0.5 0.5]]
    """

    convex: ClassVar[bool] = True

    def _value(self, x: Matrix) -> Array:
        eigenvalues, size = _eigenvalues(x)
        return indicator(_largest(x - _transpose(x)), size) + indicator(-eigenvalues[..., 0], size)

    def _prox(self, x: Matrix, step: Array) -> Matrix:
        return _positive_part(_symmetric(x))

    def _conjugate(self, x: Matrix) -> Array:
        eigenvalues, size = _eigenvalues(x)
        return indicator(eigenvalues[..., -1], size)


# Differentiating through an SVD or an eigendecomposition divides by gaps of the spectrum and gives NaN where two values
# agree, at X = 0 for instance, although the map is smooth there. Its true derivative has divided differences instead
# (Daleckii and Krein). For X = U diag(s) V' -> U diag(f(s)) V', and E the direction, A = U'EV,
#     U [ (f_i - f_j)/(s_i - s_j) * sym A  +  (f_i + f_j)/(s_i + s_j) * skew A ] V',
# and f_i / s_i on the parts of E outside the ranges of U and V. Where s_i = s_j, the difference is the slope of f.
@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _map_singular_values(f: Callable[[Array, Array], Array], x: Matrix, parameter: Array) -> Matrix:
    """U f(s, parameter) V' for x = U s V'; f acts on each singular value, and is linear but for kinks."""
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    return _compose(u, f(s, parameter), vt)


@_map_singular_values.defjvp
def _map_singular_values_jvp(
    f: Callable[[Array, Array], Array], primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Matrix, Matrix]:
    (x, parameter), (direction, change) = primals, tangents
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    mapped, slopes = jax.jvp(lambda values: f(values, parameter), (s,), (jnp.ones_like(s),))
    _, drift = jax.jvp(lambda value: f(s, value), (parameter,), (change,))
    inner = _transpose(u) @ direction @ _transpose(vt)
    even, odd = _symmetric(inner), inner - _symmetric(inner)
    core = _divided(mapped, s, slopes, -1) * even + _divided(mapped, s, slopes, +1) * odd
    ratios = _quotient(mapped, s, slopes, jnp.max(s, axis=-1, keepdims=True))
    left = _compose(direction @ _transpose(vt) - u @ inner, ratios, vt)
    right = _compose(u, ratios, _transpose(u) @ direction - inner @ vt)
    return _compose(u, mapped, vt), u @ core @ vt + left + right + _compose(u, drift, vt)


@jax.custom_jvp
def _positive_part(x: Matrix) -> Matrix:
    """The symmetric x with its negative eigenvalues set to 0."""
    values, vectors = jnp.linalg.eigh(x)
    return _compose(vectors, jnp.maximum(values, 0), _transpose(vectors))


@_positive_part.defjvp
def _positive_part_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Matrix, Matrix]:
    values, vectors = jnp.linalg.eigh(primals[0])
    mapped, slopes = jax.jvp(lambda v: jnp.maximum(v, 0), (values,), (jnp.ones_like(values),))
    inner = _transpose(vectors) @ tangents[0] @ vectors
    change = vectors @ (_divided(mapped, values, slopes, -1) * inner) @ _transpose(vectors)
    return _compose(vectors, mapped, _transpose(vectors)), change


def _divided(mapped: Spectrum, s: Spectrum, slopes: Spectrum, sign: int) -> Matrix:
    """(f_i + sign f_j) / (s_i + sign s_j) for all i, j."""

    def pairs(left: Spectrum, right: Spectrum, sign: int) -> Matrix:
        return left[..., :, None] + sign * right[..., None, :]

    size = jnp.max(jnp.abs(s), axis=-1)[..., None, None]
    return _quotient(pairs(mapped, mapped, sign), pairs(s, s, sign), pairs(slopes, slopes, 1) / 2, size)


def _quotient(change: Array, gap: Array, slope: Array, size: Array) -> Array:
    """change / gap, or the slope where the gap is too small for the quotient to mean anything."""
    wide = jnp.abs(gap) > jnp.sqrt(jnp.finfo(gap.dtype).eps) * size
    return jnp.where(wide, change / jnp.where(wide, gap, 1), slope)


def _lower(s: Spectrum, threshold: Array) -> Spectrum:
    return jnp.maximum(s - threshold, 0)


def _compose(u: Matrix, values: Spectrum, vt: Matrix) -> Matrix:
    return (u * values[..., None, :]) @ vt


def _singular_values(x: Matrix) -> Spectrum:
    return jnp.linalg.svd(_matrix(x), compute_uv=False)


def _eigenvalues(x: Matrix) -> tuple[Spectrum, Array]:
    """The eigenvalues of the symmetric part, increasing, and the size of x that their roundings are relative to."""
    values = jnp.linalg.eigvalsh(_symmetric(x))
    return values, jnp.maximum(_largest(x), jnp.max(jnp.abs(values), axis=-1))


def _largest(x: Matrix) -> Array:
    return jnp.max(jnp.abs(x), axis=(-2, -1))


def _symmetric(x: Matrix) -> Matrix:
    if _matrix(x).shape[-1] != x.shape[-2]:
        raise ValueError(f"every leaf of x must be a square matrix, got shape {x.shape}.")
    return (x + _transpose(x)) / 2


def _transpose(x: Matrix) -> Matrix:
    return jnp.swapaxes(x, -1, -2)


def _matrix(x: Array) -> Matrix:
    if x.ndim < 2:
        raise ValueError(f"every leaf of x must be a matrix, got shape {x.shape}.")
    return x
