"""Problems whose lower level is quadratic: tau = rho = 0, and M plays no part."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.analytic._base import Analytic, Data, arrays, closed_forms, norm, spectral
from proxbi.problem import Problem
from proxbi.regularizers import L1, Penalty, Zero
from proxbi.theory.constants import Constants, SharpConstants


def scalar_problem() -> Problem:
    """One variable at each level: f = (y - 2)^2 / 2 and g = (y - x)^2, so y*(x) = x and grad Phi(x) = x - 2.

    >>> problem = scalar_problem()
    >>> float(problem.value_upper(jnp.array(0.0), jnp.array(3.0)))
    0.5
    """
    return Problem(lambda x, y: 0.5 * jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2))


def spectral_quadratic(
    kappa: float, sizes: tuple[int, int] = (10, 20), seed: int = 0, strength: float = 0.01
) -> Analytic:
    """A: g = y'Ay/2 - y'Bx with the spectrum of A spaced geometrically in [1/kappa, 1], f = |Cy - d|^2 / 2, h =
    strength |x|_1.

    y* = A^-1 B x, grad Phi = B' A^-1 C'(C y* - d). All second derivatives are constant: tau = rho = 0, M plays no part,
    and C, ell, L_Phi are the norms of B' A^-1 C'C, A^-1 B and (C A^-1 B)'(C A^-1 B).

    **Arguments:**

    - `kappa`: the condition number of g in y, at least 1.
    - `sizes`: entries of x and of y.
    - `seed`: of the matrices.
    - `strength`: of h.

    **Returns:** the `Problem` with its closed forms, its constants and a start, as an `Analytic`.

    >>> import jax
    >>> analytic = spectral_quadratic(kappa=10.0, sizes=(2, 3))
    >>> jnp.linalg.norm(analytic.gradient(analytic.x0) - jax.grad(analytic.value)(analytic.x0)) < 1e-5
    Array(True, dtype=bool)
    """
    n, m = sizes
    draw = np.random.default_rng(seed)
    a = spectral(draw, m, kappa)
    b, c = draw.normal(size=(m, n)) / np.sqrt(m) / kappa, draw.normal(size=(n, m)) / np.sqrt(m)
    d = draw.normal(size=n)
    inverse_b = np.linalg.solve(a, b)
    joint = np.block([[np.zeros((n, n)), -b.T], [-b, a]])
    data = arrays(A=a, B=b, C=c, d=d)
    return Analytic(
        Problem(_a_upper, _a_lower, L1(strength), data),
        *closed_forms(_a_upper, _a_solution, _a_gradient, data),
        x0=jnp.ones(n),
        y0=jnp.zeros(m),
        kappa=kappa,
        constants=Constants(1 / kappa, max(norm(joint), norm(c.T @ c)), M=0.0, tau=0.0, rho=0.0),
        sharp=SharpConstants(1 / kappa, 1.0, norm(inverse_b.T @ c.T @ c), norm(inverse_b), norm(c @ inverse_b) ** 2),
        floor=0.0,
    )


def _a_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((data["C"] @ y - data["d"]) ** 2)


def _a_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * y @ data["A"] @ y - y @ data["B"] @ x


def _a_solution(data: Data, x: Array) -> Array:
    return jnp.linalg.solve(data["A"], data["B"] @ x)


def _a_gradient(data: Data, x: Array) -> Array:
    residual = data["C"] @ _a_solution(data, x) - data["d"]
    return data["B"].T @ jnp.linalg.solve(data["A"], data["C"].T @ residual)


def stiff_quadratic(kappa: float, size: int = 8) -> Analytic:
    """A without chance, and as hard as quadratics get: A = diag(a) with two entries 1 and the others spaced
    geometrically from 1/kappa to 1/sqrt(kappa), B = C = 1, d = a, and h = 0.01 |x|_1.

    Phi = |A^-1 x - a|^2 / 2 has curvatures from 1 to kappa^2, and every entry of grad Phi(0) is -1: C = ell = kappa,
    L_Phi = kappa^2. The norm of [[0, -1], [-1, A]] is at most (1 + sqrt(5)) / 2.

    **Arguments:**

    - `kappa`: the condition number of g in y, at least 1.
    - `size`: entries of x and of y, at least 3.

    **Returns:** the `Problem` with its closed forms, its constants and a start, as an `Analytic`.

    Example: `spectral_quadratic`.
    """
    data = arrays(a=np.append(np.geomspace(1 / kappa, kappa**-0.5, size - 2), [1.0, 1.0]))
    return Analytic(
        Problem(_stiff_upper, _stiff_lower, L1(0.01), data),
        *closed_forms(_stiff_upper, _stiff_solution, _stiff_gradient, data),
        x0=jnp.zeros(size),
        y0=jnp.zeros(size),
        kappa=kappa,
        constants=Constants(1 / kappa, (1 + 5**0.5) / 2, M=0.0, tau=0.0, rho=0.0),
        sharp=SharpConstants(1 / kappa, 1.0, kappa, kappa, kappa**2),
        floor=0.0,
    )


def _stiff_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((y - data["a"]) ** 2)


def _stiff_lower(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.sum(0.5 * data["a"] * y**2 - x * y)


def _stiff_solution(data: Data, x: Array) -> Array:
    return x / data["a"]


def _stiff_gradient(data: Data, x: Array) -> Array:
    return x / data["a"] ** 2 - 1


def kl_dial(kappa: float, exponent: float = 4.0, size: int = 4, seed: int = 0) -> Analytic:
    """B: g = (y - x)'A(y - x)/2 and f = sum |y|^q / q: y* = x and Phi has the KL exponent 1/q at its minimiser 0.

    f_x - g_xy g_yy^-1 f_y = f_y(y), so C = L_Phi = sup f_yy = q - 1 where |y_i| <= 1, and ell = 1: free of kappa.

    **Arguments:**

    - `kappa`: the condition number of g in y, at least 1.
    - `exponent`: q >= 2.
    - `size`: entries of x and of y.
    - `seed`: of the matrices.

    **Returns:** the `Problem` with its closed forms, its constants and a start, as an `Analytic`.

    Example: `spectral_quadratic`.
    """
    a = spectral(np.random.default_rng(seed), size, kappa)
    data = arrays(A=a, q=exponent)
    steepest = exponent - 1
    return Analytic(
        Problem(_b_upper, _b_lower, Zero(), data),
        *closed_forms(_b_upper, _b_solution, _b_gradient, data),
        x0=jnp.linspace(0.4, 0.8, size),
        y0=jnp.zeros(size),
        kappa=kappa,
        constants=Constants(1 / kappa, max(2.0, steepest), M=0.0, tau=0.0, rho=0.0),
        sharp=SharpConstants(1 / kappa, 1.0, steepest, 1.0, steepest),
        floor=0.0,
        region=1.0,
    )


def _b_upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.sum(jnp.abs(y) ** data["q"]) / data["q"]


def _b_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * (y - x) @ data["A"] @ (y - x)


def _b_solution(data: Data, x: Array) -> Array:
    return x


def _b_gradient(data: Data, x: Array) -> Array:
    return jnp.sign(x) * jnp.abs(x) ** (data["q"] - 1)


class ThreeHalves(Penalty):
    r"""$h(x) = \lambda \sum_i |x_i|^{3/2}$, whose prox has a closed form and whose KL exponent at 0 is 2/3.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.

    >>> print(ThreeHalves(1.0).prox(jnp.array([2.5, -7.0]), 1.0))
    [ 1. -4.]
    """

    convex: ClassVar[bool] = True

    def _value(self, x: Array) -> Array:
        return self.strength.astype(x.dtype) * jnp.abs(x) ** 1.5

    # u + 3/2 s sqrt(u) = |x| is quadratic in sqrt(u); its root is written without cancellation.
    def _prox(self, x: Array, step: Array) -> Array:
        half, magnitude = 0.75 * step * self.strength.astype(x.dtype), jnp.abs(x)
        divisor = half + jnp.sqrt(half**2 + magnitude)
        return jnp.sign(x) * (magnitude / jnp.where(divisor > 0, divisor, 1)) ** 2


def sharp_minimum(kappa: float, power: float = 1.0, size: int = 4, seed: int = 0) -> Analytic:
    """C: g as in B, f = sum (y_i - b)^2 / 2 and h = sum |x_i|^power with power 1 (b = 0.3) or 3/2 (b = 0): Phi + h
    has its minimum at 0, with the KL exponent 1/power > 1/2.

    For power 1 the minimum is sharp (b < 1) and found in finitely many steps, for 3/2 the distance is squared in each:
    if the lower solve is exact. C = ell = L_Phi = 1.

    **Arguments:**

    - `kappa`: the condition number of g in y, at least 1.
    - `power`: 1 or 3/2.
    - `size`: entries of x and of y.
    - `seed`: of the matrices.

    **Returns:** the `Problem` with its closed forms, its constants and a start, as an `Analytic`.

    Example: `spectral_quadratic`.
    """
    if power not in (1.0, 1.5):
        raise ValueError(f"power must be 1 or 1.5, got {power}.")
    b = 0.3 if power == 1.0 else 0.0
    data = arrays(A=spectral(np.random.default_rng(seed), size, kappa), b=b)
    return Analytic(
        Problem(_c_upper, _b_lower, L1(1.0) if power == 1.0 else ThreeHalves(1.0), data),
        *closed_forms(_c_upper, _b_solution, _c_gradient, data),
        x0=jnp.linspace(0.5, 1.0, size),
        y0=jnp.zeros(size),
        kappa=kappa,
        constants=Constants(1 / kappa, 2.0, M=0.0, tau=0.0, rho=0.0),
        sharp=SharpConstants(1 / kappa, 1.0, 1.0, 1.0, 1.0),
        floor=size * b**2 / 2,
    )


def _c_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((y - data["b"]) ** 2)


def _c_gradient(data: Data, x: Array) -> Array:
    return x - data["b"]
