r"""Extreme eigenvalues of symmetric operators that are only available through products: the Lanczos process.

After k products with A the process has an orthonormal basis Q of the Krylov space and the tridiagonal Q'AQ, whose
eigenvalues (the Ritz values) lie *inside* the spectrum: the largest is at most lambda_max, the smallest is at least
lambda_min. So the estimate of L is a lower bound of L, and the estimate of mu an **upper bound** of mu. It never proves
that g is strongly convex, but a Ritz value <= 0 proves that it is not.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from proxbi._tree import Scalar
from proxbi.problem import Problem


class Ritz(NamedTuple):
    """Bounds on the spectrum from k products.

    Example: `lower_spectrum`.
    """

    smallest: Scalar
    """An upper bound of the smallest eigenvalue."""
    largest: Scalar
    """A lower bound of the largest eigenvalue."""
    smallest_residual: Scalar
    """|A q - smallest q| for the Ritz vector q: there is an eigenvalue this close to `smallest`, not
    necessarily the smallest one.
    """
    largest_residual: Scalar
    """The same for `largest`."""

    @property
    def magnitude(self) -> Scalar:
        """A lower bound of the spectral norm."""
        return jnp.maximum(jnp.abs(self.smallest), jnp.abs(self.largest))


# Full reorthogonalisation, twice: without it, rounding makes copies of the extreme Ritz values. When the Krylov space
# is exhausted, the process restarts with a random vector orthogonal to all earlier ones: the tridiagonal matrix gets a
# 0 there, and an eigenvector that was orthogonal to the first start is still found.
@eqx.filter_jit
def lanczos(matvec: Callable[[PyTree], PyTree], like: PyTree, steps: int, key: PRNGKeyArray) -> Ritz:
    """`steps` steps (at most the dimension) for the symmetric `matvec` on vectors shaped as `like`.

    >>> ritz = lanczos(jax.tree_util.Partial(lambda v: jnp.arange(1.0, 6.0) * v), jnp.ones(5), 5, jax.random.key(0))
    >>> print(ritz.smallest.round(4), ritz.largest.round(4))
    1.0 5.0
    """
    flat, unravel = ravel_pytree(like)
    steps = min(steps, flat.size)
    fresh = jax.random.normal(key, (steps + 1, flat.size), flat.dtype)
    eps = jnp.finfo(flat.dtype).eps

    def orthogonal(w: Array, basis: Array) -> Array:
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        return w

    def step(basis: Array, k: Array) -> tuple[Array, tuple[Array, Array]]:
        q = basis[k]
        product = ravel_pytree(matvec(unravel(q)))[0]
        w = orthogonal(product, basis)
        length = jnp.linalg.norm(w)
        exhausted = length <= 10 * eps * jnp.linalg.norm(product)
        restart = orthogonal(fresh[k + 1], basis)
        following = jnp.where(exhausted, restart, w)
        following = following / jnp.maximum(jnp.linalg.norm(following), jnp.finfo(flat.dtype).tiny)
        return basis.at[k + 1].set(following), (q @ product, jnp.where(exhausted, 0, length))

    basis = jnp.zeros((steps + 1, flat.size), flat.dtype).at[0].set(fresh[0] / jnp.linalg.norm(fresh[0]))
    _, (diagonal, beside) = jax.lax.scan(step, basis, jnp.arange(steps))
    values, vectors = jnp.linalg.eigh(_tridiagonal(diagonal, beside[:-1]))
    residuals = jnp.abs(beside[-1] * vectors[-1])
    return Ritz(values[0], values[-1], residuals[0], residuals[-1])


def _tridiagonal(diagonal: Float[Array, " k"], beside: Float[Array, " k-1"]) -> Float[Array, "k k"]:
    return jnp.diag(diagonal) + jnp.diag(beside, 1) + jnp.diag(beside, -1)


def lower_spectrum(problem: Problem, x: PyTree, y: PyTree, steps: int = 30, key: PRNGKeyArray | None = None) -> Ritz:
    """Estimates of mu (from above) and L (from below) of g(x, .) at (x, y), from `steps` products with g_yy.

    **Arguments:**

    - `problem`, `x`, `y`: the problem and the point.
    - `steps`: the number of products; more give closer estimates.
    - `key`: for the random first direction.

    **Returns:** a `Ritz`.

    >>> from proxbi.analytic import spectral_quadratic
    >>> analytic = spectral_quadratic(kappa=10.0, sizes=(2, 3))
    >>> found = lower_spectrum(analytic.problem, analytic.x0, analytic.y0, steps=3)
    >>> round(float(found.smallest), 3), round(float(found.largest), 3)
    (0.1, 1.0)
    """
    return _lower_spectrum(problem, x, y, steps, jax.random.key(0) if key is None else key)


@eqx.filter_jit
def _lower_spectrum(problem: Problem, x: PyTree, y: PyTree, steps: int, key: PRNGKeyArray) -> Ritz:
    return lanczos(problem.hvp(x, y), y, steps, key)


@eqx.filter_jit
def cross_norm(problem: Problem, x: PyTree, y: PyTree, steps: int, key: PRNGKeyArray) -> Scalar:
    """A lower bound of |g_xy| at (x, y): the root of the largest Ritz value of g_yx g_xy."""
    cross = problem.cross(x, y)
    back = jax.linear_transpose(cross, y)
    return jnp.sqrt(jnp.maximum(lanczos(lambda v: back(cross(v))[0], y, steps, key).largest, 0))


@eqx.filter_jit
def upper_smoothness(problem: Problem, x: PyTree, y: PyTree, steps: int, key: PRNGKeyArray) -> Scalar:
    """A lower bound of the norm of the Hessian of f, jointly in (x, y)."""
    hessian = jax.linearize(lambda at: problem.grad_upper(*at), (x, y))[1]
    return lanczos(hessian, (x, y), steps, key).magnitude
