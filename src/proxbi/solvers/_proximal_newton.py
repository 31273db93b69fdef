r"""The step of a proximal Newton method, x+ = argmin_u <d, u - x> + <u - x, B (u - x)> / 2 + h(u), for B = sigma I +
Q K Q' and any h.

The model is solved by a semismooth Newton method on its own prox-gradient map with step t = 1/sigma. As B has low
rank beside sigma I, so has the Newton equation: with P the derivative of the prox at z = x + u -
t (d + B u) and R = x + u - prox_{t h}(z),

    (I - P (I - t B)) e = -R     <=>     e = -R - t P Q K w,     (I + t Q'P Q K) w = -Q'R,     w = Q'e.

No oracle of f or g is called; P costs one product for a separable h and dim(Q) otherwise (Becker, Fadili, Ochs,
"On quasi-Newton forward-backward splitting", 2019).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.regularizers import Regularizer, Zero
from proxbi.secant import Model

_ACCURACY, _MOST_STEPS = 0.1, 10


class Target(NamedTuple):
    """Where the hypergradient is to be taken."""

    x: PyTree
    subgradient: PyTree
    sigma: Scalar
    proxes: Int[Array, ""]


class _Inner(NamedTuple):
    u: Float[Array, " n"]
    z: Float[Array, " n"]
    image: Float[Array, " n"]
    gap: Scalar
    best: tuple[Float[Array, " n"], Float[Array, " n"], Scalar]
    steps: Int[Array, ""]


def propose(h: Regularizer, x: PyTree, grad: PyTree, b: Model, curved: Bool[Array, ""]) -> Target:
    """The minimiser of the model, as far as a few semismooth Newton steps find it; one prox is enough where B is a
    multiple of I, that is, not `curved`.
    """
    x, unravel = ravel_pytree(x)
    d = ravel_pytree(grad)[0]
    t = 1 / b.sigma

    def prox(z: Array) -> Array:
        return ravel_pytree(h.prox(unravel(z), t))[0]

    def look(u: Array, best: tuple[Array, Array, Scalar] | None, steps: Array) -> _Inner:
        z = x + u - t * (d + b @ u)
        image = prox(z)
        gap = jnp.linalg.norm(x + u - image)
        found = (z, image, gap)
        best = found if best is None else _tree.where((gap < best[2]) | (steps == 1), found, best)
        return _Inner(u, z, image, gap, best, steps)

    def newton(at: _Inner) -> _Inner:
        residual = x + at.u - at.image
        pq = _prox_derivative(h, prox, at.z, b.basis)
        small = jnp.eye(b.basis.shape[1], dtype=x.dtype) + t * (b.basis.T @ pq) @ b.inner
        w = jnp.linalg.solve(small, -(b.basis.T @ residual))
        return look(at.u - residual - t * pq @ (b.inner @ w), at.best, at.steps + 1)

    first = look(jnp.zeros_like(x), None, jnp.int32(0))

    def unsolved(at: _Inner) -> Array:
        return curved & (at.gap > _ACCURACY * first.gap) & (at.steps < _MOST_STEPS)

    last = jax.lax.while_loop(unsolved, newton, first)
    z, image, _ = last.best
    proxes = 1 + last.steps * (1 + _derivative_cost(h, b))
    return Target(unravel(image), unravel((z - image) / t), b.sigma, proxes)


def _prox_derivative(
    h: Regularizer, prox: Callable[[Array], Array], z: Array, basis: Float[Array, "n r"]
) -> Float[Array, "n r"]:
    """P Q: the derivative of the prox at z applied to each column."""
    if isinstance(h, Zero):
        return basis
    if h.separable:  # P is diagonal
        return jax.jvp(prox, (z,), (jnp.ones_like(z),))[1][:, None] * basis
    return jax.vmap(lambda q: jax.jvp(prox, (z,), (q,))[1], in_axes=1, out_axes=1)(basis)


def _derivative_cost(h: Regularizer, b: Model) -> int:
    if isinstance(h, Zero):
        return 0
    return 1 if h.separable else b.basis.shape[1]
