r"""The step of a proximal Newton method, x+ = argmin_u <d, u - x> + <u - x, B (u - x)> / 2 + h(u), for B = sigma I +
Q K Q' and any h.

The model is solved by a semismooth Newton method on its own prox-gradient map with step t = 1/sigma. B is sigma I plus
a matrix of low rank, and the matrix of the Newton equation is I plus one: with P the derivative of the prox at z = x +
u - t (d + B u) and R = x + u - prox_{t h}(z),

    (I - P (I - t B)) e = -R     <=>     e = -R - t P Q K w,     (I + t Q'P Q K) w = -Q'R,     w = Q'e.

No oracle of f or g is called. For a separable h, P is diagonal and costs one product (Becker, Fadili, Ochs, "On
quasi-Newton forward-backward splitting", 2019). For any other h every product with P costs as much as a prox: there the
equation on the left is solved by minimal residuals, to limited accuracy.

**Jumps.** A nonconvex h may put the minimiser of the model far away, where the model means nothing, again and again, as
a rejected step hardly changes B. So entries that would move further than a given `reach` are held: their sigma is
raised until they stay near (for an h that is not separable, the sigma of all). With D the diagonal matrix added, t is
the diagonal matrix (sigma I + D)^-1 in all formulas, and B is B + D.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from proxbi import _tree
from proxbi._lbfgs import Model
from proxbi._tree import Scalar
from proxbi.linear import minimal_residuals
from proxbi.regularizers import Regularizer, Zero

_ACCURACY, _MOST_STEPS = 0.1, 4  # of the model: it is itself only a model
_LINEAR_ACCURACY, _MOST_PRODUCTS = 0.1, 10
_FACTOR, _LARGEST_FACTOR = 10, 1e7  # on sigma, for entries that are held


class Target(NamedTuple):
    """Where the hypergradient is evaluated next."""

    x: PyTree
    subgradient: PyTree
    """An element of dh(x)."""
    proxes: Int[Array, ""]


class _Inner(NamedTuple):
    u: Float[Array, " n"]
    z: Float[Array, " n"]
    image: Float[Array, " n"]
    gap: Scalar
    best: tuple[Float[Array, " n"], Float[Array, " n"], Scalar]
    steps: Int[Array, ""]
    proxes: Int[Array, ""]


class _Held(NamedTuple):
    """Entries that are held near x, and the factor on their sigma."""

    entries: Bool[Array, " n"]
    factor: Scalar


Flat = Float[Array, " n"]


def propose(
    h: Regularizer, x: PyTree, grad: PyTree, b: Model, curved: Bool[Array, ""], reach: Scalar | float = jnp.inf
) -> Target:
    """The minimiser of the model, as far as a few semismooth Newton steps find it, with those entries held that a
    nonconvex h would move further than `reach`. One prox is enough where B is a multiple of I, that is, not `curved`.
    """
    (at, unravel), d = ravel_pytree(x), ravel_pytree(grad)[0]

    def prox(z: Flat, t: Scalar) -> Flat:
        return ravel_pytree(h.prox(unravel(z), t))[0]

    def far(state: tuple[Target, _Held]) -> Bool[Array, ""]:
        return (jnp.linalg.norm(state[0].x - at) > reach) & (state[1].factor < _LARGEST_FACTOR)

    def hold(state: tuple[Target, _Held]) -> tuple[Target, _Held]:
        found, held = state
        # If no entry moves further than this, x moves no further than `reach`.
        entries = jnp.abs(found.x - at) > reach / at.size**0.5 if h.separable else True
        held = _Held(held.entries | entries, _FACTOR * held.factor)
        new = _minimised(h, prox, at, d, b, curved, held)
        return new._replace(proxes=found.proxes + new.proxes), held

    found = _minimised(h, prox, at, d, b, curved)
    if not h.convex:
        none = _Held(jnp.zeros(at.shape, bool), jnp.ones((), at.dtype))
        found = jax.lax.while_loop(far, hold, (found, none))[0]
    return Target(unravel(found.x), unravel(found.subgradient), found.proxes)


def _minimised(
    h: Regularizer,
    prox: Callable[[Flat, Scalar], Flat],
    x: Flat,
    d: Flat,
    b: Model,
    curved: Bool[Array, ""],
    held: _Held | None = None,
) -> Target:
    t = 1 / jnp.where(b.sigma > 0, b.sigma, 1)  # 0 where d vanishes and nothing is known
    steps = t if held is None else jnp.where(held.entries, t / held.factor, t)

    def near(z: Flat) -> Flat:
        return prox(z, t) if held is None else jnp.where(held.entries, prox(z, t / held.factor), prox(z, t))

    def look(u: Array, best: tuple[Array, Array, Scalar] | None, number: Array, proxes: Array) -> _Inner:
        z = x + u - steps * (d + b @ u + (1 / steps - 1 / t) * u)
        image = near(z)
        gap = jnp.linalg.norm(x + u - image)
        found = (z, image, gap)
        best = found if best is None else _tree.where((gap < best[2]) | (number == 1), found, best)
        return _Inner(u, z, image, gap, best, number, proxes + (1 if held is None else 2))

    def newton(at: _Inner) -> _Inner:
        residual = x + at.u - at.image
        if h.separable:
            move = _directly(b, steps * _diagonal(h, near, at.z), residual)
            products = jnp.int32(not isinstance(h, Zero))
        else:
            p = jax.linearize(near, at.z)[1]
            move, products = minimal_residuals(
                lambda e: e + p(steps * (b.basis @ (b.inner @ (b.basis.T @ e)))),
                -residual,
                _LINEAR_ACCURACY,
                _MOST_PRODUCTS,
            )
        return look(at.u + move, at.best, at.steps + 1, at.proxes + products)

    first = look(jnp.zeros_like(x), None, jnp.int32(0), jnp.int32(0))

    def unsolved(at: _Inner) -> Array:
        return curved & (at.gap > _ACCURACY * first.gap) & (at.steps < _MOST_STEPS)

    last = jax.lax.while_loop(unsolved, newton, first)
    z, image, _ = last.best
    return Target(image, (z - image) / steps, last.proxes)


def _diagonal(h: Regularizer, prox: Callable[[Flat], Flat], z: Flat) -> Flat:
    """P of a separable h."""
    return jnp.ones_like(z) if isinstance(h, Zero) else jax.jvp(prox, (z,), (jnp.ones_like(z),))[1]


def _directly(b: Model, tp: Flat, residual: Flat) -> Flat:
    """The Newton step for a diagonal t P."""
    tpq = tp[:, None] * b.basis
    small = jnp.eye(b.basis.shape[1], dtype=residual.dtype) + (b.basis.T @ tpq) @ b.inner
    return -residual - tpq @ (b.inner @ jnp.linalg.solve(small, -(b.basis.T @ residual)))
