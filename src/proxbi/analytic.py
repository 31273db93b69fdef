r"""Bilevel problems with everything in closed form: y*(x), Phi(x), grad Phi(x). For checks, demonstrations and tests.

Each `Analytic` holds a `Problem` and the three closed forms. The lower problem's Hessian has its spectrum in [mu, L] =
[1/kappa, 1].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.problem import Problem
from proxbi.regularizers import L1, Box, NegativeCappedL1, Regularizer, Zero


class Analytic(NamedTuple):
    """A problem and its closed forms."""

    problem: Problem
    solution: Callable[[Array], Array]
    """x -> y*(x)."""
    value: Callable[[Array], Scalar]
    """x -> Phi(x) = f(x, y*(x))."""
    gradient: Callable[[Array], Array]
    """x -> grad Phi(x)."""
    x0: Array
    y0: Array
    kappa: float


def scalar_problem() -> Problem:
    """One variable at each level: f = (y - 2)^2 / 2 and g = (y - x)^2, so y*(x) = x and grad Phi(x) = x - 2."""
    return Problem(lambda x, y: 0.5 * jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2))


def spectral_quadratic(
    kappa: float, sizes: tuple[int, int] = (10, 20), seed: int = 0, strength: float = 0.01
) -> Analytic:
    """A: g = y'Ay/2 - y'Bx with the spectrum of A spaced geometrically in [1/kappa, 1], f = |Cy - d|^2 / 2, h =
    strength |x|_1.

    y* = A^-1 B x, grad Phi = B' A^-1 C'(C y* - d).
    """
    n, m = sizes
    draw = np.random.default_rng(seed)
    rotation = np.linalg.qr(draw.normal(size=(m, m)))[0]
    a = jnp.asarray(rotation @ np.diag(np.geomspace(1 / kappa, 1, m)) @ rotation.T)
    data = {
        "A": (a + a.T) / 2,
        "B": jnp.asarray(draw.normal(size=(m, n)) / np.sqrt(m)) / kappa,
        "C": jnp.asarray(draw.normal(size=(n, m)) / np.sqrt(m)),
        "d": jnp.asarray(draw.normal(size=n)),
    }

    def upper(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return 0.5 * jnp.sum((data["C"] @ y - data["d"]) ** 2)

    def lower(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return 0.5 * y @ data["A"] @ y - y @ data["B"] @ x

    def solution(x: Array) -> Array:
        return jnp.linalg.solve(data["A"], data["B"] @ x)

    def gradient(x: Array) -> Array:
        residual = data["C"] @ solution(x) - data["d"]
        return data["B"].T @ jnp.linalg.solve(data["A"], data["C"].T @ residual)

    problem = Problem(upper, lower, L1(strength), data)
    return Analytic(
        problem, solution, lambda x: upper(x, solution(x), data), gradient, jnp.ones(n), jnp.zeros(m), kappa
    )


def kl_dial(kappa: float, exponent: float = 4.0, size: int = 4, seed: int = 0) -> Analytic:
    """B: g = (y - x)'A(y - x)/2 and f = sum |y|^q / q: y* = x and Phi has the KL exponent 1/q at its minimiser 0."""
    draw = np.random.default_rng(seed)
    rotation = np.linalg.qr(draw.normal(size=(size, size)))[0]
    a = jnp.asarray(rotation @ np.diag(np.geomspace(1 / kappa, 1, size)) @ rotation.T)

    def upper(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return jnp.sum(jnp.abs(y) ** data["q"]) / data["q"]

    def lower(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return 0.5 * (y - x) @ data["A"] @ (y - x)

    data = {"A": (a + a.T) / 2, "q": jnp.asarray(exponent)}
    return Analytic(
        Problem(upper, lower, Zero(), data),
        solution=lambda x: x,
        value=lambda x: upper(x, x, data),
        gradient=lambda x: jnp.sign(x) * jnp.abs(x) ** (exponent - 1),
        x0=jnp.linspace(0.4, 0.8, size),
        y0=jnp.zeros(size),
        kappa=kappa,
    )


def smooth_nonquadratic(
    kappa: float, sizes: tuple[int, int] = (8, 12), seed: int = 0, regularizer: Regularizer | None = None
) -> Analytic:
    r"""D: every assumption of the paper holds globally, and g is not quadratic.

    With L = 1, mu = 1/kappa, a = (L + mu)/2, b = (L - mu)/2 and t = Bx, entry by entry

        g_y = a y + b (sqrt(1 + y^2) - 1) - t     so that g_yy lies in (mu, L) and is b-Lipschitz,
        y*(t) = [a (t + b) - b sqrt((t + b)^2 + L mu)] / (L mu),

    (the root of (a y - b - t)^2 = b^2 (1 + y^2) with the right sign), and f = sum sqrt(1 + (y - d)^2). h is nonconvex
    by default.
    """
    n, m = sizes
    draw = np.random.default_rng(seed)
    mu = 1 / kappa
    a, b = (1 + mu) / 2, (1 - mu) / 2
    data = {"B": jnp.asarray(draw.normal(size=(m, n)) / np.sqrt(n)), "d": jnp.asarray(draw.normal(size=m))}

    def upper(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return jnp.sum(jnp.sqrt(1 + (y - data["d"]) ** 2))

    def lower(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        arc = (y * jnp.sqrt(1 + y**2) + jnp.arcsinh(y)) / 2 - y
        return jnp.sum(0.5 * a * y**2 + b * arc - (data["B"] @ x) * y)

    def solution(x: Array) -> Array:
        t = data["B"] @ x
        root = jnp.sqrt((t + b) ** 2 + mu)
        # a(t+b) - b root cancels for kappa large and t + b > 0: there multiply out by the conjugate, using a^2 - b^2
        # = mu.
        plain = (a * (t + b) - b * root) / mu
        stable = ((t + b) ** 2 - b**2) / (a * (t + b) + b * root)
        return jnp.where(t + b > 0, stable, plain)

    def gradient(x: Array) -> Array:
        y = solution(x)
        curvature = a + b * y / jnp.sqrt(1 + y**2)
        return data["B"].T @ ((y - data["d"]) / jnp.sqrt(1 + (y - data["d"]) ** 2) / curvature)

    h = NegativeCappedL1(0.05, 2.0) if regularizer is None else regularizer
    return Analytic(
        Problem(upper, lower, h, data),
        solution,
        lambda x: upper(x, solution(x), data),
        gradient,
        jnp.asarray(0.3 * draw.normal(size=n)),
        jnp.zeros(m),
        kappa,
    )


def ridge_hyperparameters(kappa: float, rows: int = 40, features: int = 6, seed: int = 0) -> Analytic:
    """E: g = |Zy - t|^2 / 2 + sum e^{x_i} y_i^2 / 2 (one ridge penalty per feature), f = |Z'y - t'|^2 / 2 held out, h
    = a box.

    y*(x) = (Z'Z + diag e^x)^-1 Z't by a dense solve, and grad Phi_i = -e^{x_i} y*_i v_i with (Z'Z + diag e^x) v = f_y.
    """
    draw = np.random.default_rng(seed)
    left = np.linalg.qr(draw.normal(size=(rows, features)))[0]
    right = np.linalg.qr(draw.normal(size=(features, features)))[0]
    design = left @ np.diag(np.sqrt(np.geomspace(1 / kappa, 1, features))) @ right
    held_out = draw.normal(size=(rows, features)) / np.sqrt(rows)
    truth = draw.normal(size=features)
    data = {
        "Z": jnp.asarray(design),
        "t": jnp.asarray(design @ truth + 0.1 * draw.normal(size=rows)),
        "Z_held_out": jnp.asarray(held_out),
        "t_held_out": jnp.asarray(held_out @ truth + 0.1 * draw.normal(size=rows)),
    }

    def upper(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return 0.5 * jnp.sum((data["Z_held_out"] @ y - data["t_held_out"]) ** 2)

    def lower(x: Array, y: Array, data: dict[str, Array]) -> Scalar:
        return 0.5 * jnp.sum((data["Z"] @ y - data["t"]) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y**2)

    def hessian(x: Array) -> Array:
        return data["Z"].T @ data["Z"] + jnp.diag(jnp.exp(x))

    def solution(x: Array) -> Array:
        return jnp.linalg.solve(hessian(x), data["Z"].T @ data["t"])

    def gradient(x: Array) -> Array:
        y = solution(x)
        v = jnp.linalg.solve(hessian(x), jax.grad(upper, argnums=1)(x, y, data))
        return -jnp.exp(x) * y * v

    low, high = -jnp.log(kappa), 2.0
    return Analytic(
        Problem(upper, lower, Box(low, high), data),
        solution,
        lambda x: upper(x, solution(x), data),
        gradient,
        jnp.linspace(low / 2, high / 2, features),
        jnp.zeros(features),
        kappa,
    )
