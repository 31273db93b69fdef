r"""The step of a proximal Newton method, x+ = argmin_u <d, u - x> + <u - x, B (u - x)> / 2 + h(u), for B = sigma I +
Q K Q' and any h.

The model is solved by a semismooth Newton method on its own prox-gradient map with step t = 1/sigma. As B has low
rank beside sigma I, so has the Newton equation: with P the derivative of the prox at z = x + u -
t (d + B u) and R = x + u - prox_{t h}(z),

    (I - P (I - t B)) e = -R     <=>     e = -R - t P Q K w,     (I + t Q'P Q K) w = -Q'R,     w = Q'e.

No oracle of f or g is called. For a separable h, P is diagonal and costs one product (Becker, Fadili, Ochs, "On
quasi-Newton forward-backward splitting", 2019). For any other h every product with P costs as much as a prox: there the
equation on the left is solved by minimal residuals, as far as it matters.
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


class Target(NamedTuple):
    """Where the hypergradient is to be taken."""

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


def propose(h: Regularizer, x: PyTree, grad: PyTree, b: Model, curved: Bool[Array, ""]) -> Target:
    """The minimiser of the model, as far as a few semismooth Newton steps find it; one prox is enough where B is a
    multiple of I, that is, not `curved`.
    """
    x, unravel = ravel_pytree(x)
    d = ravel_pytree(grad)[0]
    t = 1 / jnp.where(b.sigma > 0, b.sigma, 1)  # 0 where d vanishes and nothing is known

    def prox(z: Array) -> Array:
        return ravel_pytree(h.prox(unravel(z), t))[0]

    def look(u: Array, best: tuple[Array, Array, Scalar] | None, steps: Array, proxes: Array) -> _Inner:
        z = x + u - t * (d + b @ u)
        image = prox(z)
        gap = jnp.linalg.norm(x + u - image)
        found = (z, image, gap)
        best = found if best is None else _tree.where((gap < best[2]) | (steps == 1), found, best)
        return _Inner(u, z, image, gap, best, steps, proxes + 1)

    def newton(at: _Inner) -> _Inner:
        residual = x + at.u - at.image
        if h.separable:
            move, products = _directly(b, t, _diagonal(h, prox, at.z), residual), jnp.int32(not isinstance(h, Zero))
        else:
            p = jax.linearize(prox, at.z)[1]
            move, products = minimal_residuals(
                lambda e: e + t * p(b.basis @ (b.inner @ (b.basis.T @ e))), -residual, _LINEAR_ACCURACY, _MOST_PRODUCTS
            )
        return look(at.u + move, at.best, at.steps + 1, at.proxes + products)

    first = look(jnp.zeros_like(x), None, jnp.int32(0), jnp.int32(0))

    def unsolved(at: _Inner) -> Array:
        return curved & (at.gap > _ACCURACY * first.gap) & (at.steps < _MOST_STEPS)

    last = jax.lax.while_loop(unsolved, newton, first)
    z, image, _ = last.best
    return Target(unravel(image), unravel((z - image) / t), last.proxes)


def _diagonal(h: Regularizer, prox: Callable[[Array], Array], z: Array) -> Float[Array, " n"]:
    """P of a separable h."""
    return jnp.ones_like(z) if isinstance(h, Zero) else jax.jvp(prox, (z,), (jnp.ones_like(z),))[1]


def _directly(b: Model, t: Scalar, diagonal: Float[Array, " n"], residual: Float[Array, " n"]) -> Float[Array, " n"]:
    """The Newton step for a diagonal P."""
    pq = diagonal[:, None] * b.basis
    small = jnp.eye(b.basis.shape[1], dtype=residual.dtype) + t * (b.basis.T @ pq) @ b.inner
    return -residual - t * pq @ (b.inner @ jnp.linalg.solve(small, -(b.basis.T @ residual)))
