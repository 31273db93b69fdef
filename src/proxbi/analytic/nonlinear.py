"""Problems whose lower level is not jointly quadratic: g_yy or g_xy varies."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.analytic._base import Analytic, Data, arrays, closed_forms, norm
from proxbi.problem import Problem
from proxbi.regularizers import Box, NegativeCappedL1, Regularizer
from proxbi.theory.constants import Constants, SharpConstants


def smooth_nonquadratic(
    kappa: float, sizes: tuple[int, int] = (8, 12), seed: int = 0, regularizer: Regularizer | None = None
) -> Analytic:
    r"""D: every assumption of the paper holds globally, and g is not quadratic.

    With L = 1, mu = 1/kappa, a = (L + mu)/2, b = (L - mu)/2 and t = Bx, entry by entry

        g_y = a y + b (sqrt(1 + y^2) - 1) - t     so that g_yy lies in (mu, L) and is b-Lipschitz,
        y*(t) = [a (t + b) - b sqrt((t + b)^2 + L mu)] / (L mu),

    (the root of (a y - b - t)^2 = b^2 (1 + y^2) with the right sign), and f = sum sqrt(1 + (y - d)^2). h is nonconvex
    by default; any other must be >= 0. g_yy is diagonal and |f_y| < 1 entry by entry, so rho = b may be used with the
    largest entry of v, 1/mu, instead of its norm. The norm of [[0, -B'], [-B, 1]] is (1 + sqrt(1 + 4 |B|^2)) / 2.

    **Arguments:**

    - `kappa`: the condition number of g in y, at least 1.
    - `sizes`: entries of x and of y.
    - `seed`: of the matrices.
    - `regularizer`: h, instead of the default.

    **Returns:** the `Problem` with its closed forms, its constants and a start, as an `Analytic`.

    Example: `spectral_quadratic`.
    """
    n, m = sizes
    draw = np.random.default_rng(seed)
    mu, rho = 1 / kappa, (1 - 1 / kappa) / 2
    matrix, target = draw.normal(size=(m, n)) / np.sqrt(n), draw.normal(size=m)
    data = arrays(B=matrix, d=target, mu=mu)
    cross, joint = norm(matrix), (1 + np.sqrt(1 + 4 * norm(matrix) ** 2)) / 2
    h = NegativeCappedL1(0.05, 2.0) if regularizer is None else regularizer
    return Analytic(
        Problem(_d_upper, _d_lower, h, data),
        *closed_forms(_d_upper, _d_solution, _d_gradient, data),
        x0=jnp.asarray(0.3 * draw.normal(size=n)),
        y0=jnp.zeros(m),
        kappa=kappa,
        constants=Constants(mu, float(max(1.0, joint)), M=float(np.sqrt(m)), tau=0.0, rho=rho),
        sharp=SharpConstants.from_blocks(mu=mu, L=1.0, cross=cross, adjoint=1 / mu, f_yy=1.0, rho_y=rho),
        floor=m - (float(h.strength * h.cap) * n if isinstance(h, NegativeCappedL1) else 0.0),
    )


def _d_upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.sum(jnp.sqrt(1 + (y - data["d"]) ** 2))


def _d_lower(x: Array, y: Array, data: Data) -> Scalar:
    a, b = (1 + data["mu"]) / 2, (1 - data["mu"]) / 2
    arc = (y * jnp.sqrt(1 + y**2) + jnp.arcsinh(y)) / 2 - y
    return jnp.sum(0.5 * a * y**2 + b * arc - (data["B"] @ x) * y)


def _d_solution(data: Data, x: Array) -> Array:
    mu = data["mu"]
    a, b, t = (1 + mu) / 2, (1 - mu) / 2, data["B"] @ x
    root = jnp.sqrt((t + b) ** 2 + mu)
    # a(t+b) - b root cancels for kappa large and t + b > 0: there multiply out by the conjugate, using a^2 - b^2 = mu.
    plain = (a * (t + b) - b * root) / mu
    stable = ((t + b) ** 2 - b**2) / (a * (t + b) + b * root)
    return jnp.where(t + b > 0, stable, plain)


def _d_gradient(data: Data, x: Array) -> Array:
    a, b, y = (1 + data["mu"]) / 2, (1 - data["mu"]) / 2, _d_solution(data, x)
    curvature = a + b * y / jnp.sqrt(1 + y**2)
    return data["B"].T @ ((y - data["d"]) / jnp.sqrt(1 + (y - data["d"]) ** 2) / curvature)


def ridge_hyperparameters(kappa: float, rows: int = 40, features: int = 6, seed: int = 0) -> Analytic:
    """E: g = |Zy - t|^2 / 2 + sum e^{x_i} y_i^2 / 2 (one ridge penalty per feature), f = |Z'y - t'|^2 / 2 held out, h
    = a box.

    y*(x) = (Z'Z + diag e^x)^-1 Z't by a dense solve, and grad Phi_i = -e^{x_i} y*_i v_i with (Z'Z + diag e^x) v = f_y.
    With d = e^low the least and p = e^high the largest penalty, |y*| <= R/2 for R = |t| / sqrt(d) (write Z = W diag
    e^{x/2}: (W'W + 1)^-1 W' has norm at most 1/2). The constants are those on the box and |y| <= R, where g_xy = diag
    e^{x_i} y_i.

    **Arguments:**

    - `kappa`: the condition number of g in y, at least 1.
    - `rows`: rows of Z; as many are held out.
    - `features`: columns of Z, and entries of x.
    - `seed`: of the data.

    **Returns:** the `Problem` with its closed forms, its constants and a start, as an `Analytic`.

    Example: `spectral_quadratic`.
    """
    draw = np.random.default_rng(seed)
    left = np.linalg.qr(draw.normal(size=(rows, features)))[0]
    right = np.linalg.qr(draw.normal(size=(features, features)))[0]
    design = left @ np.diag(np.sqrt(np.geomspace(1 / kappa, 1, features))) @ right
    held_out, truth = draw.normal(size=(rows, features)) / np.sqrt(rows), draw.normal(size=features)
    target = design @ truth + 0.1 * draw.normal(size=rows)
    unseen = held_out @ truth + 0.1 * draw.normal(size=rows)
    data = arrays(Z=design, t=target, Z_held_out=held_out, t_held_out=unseen)

    low, high = -np.log(kappa), 2.0
    mu, top, f_yy = 1 / kappa + np.exp(low), np.exp(high), norm(held_out.T @ held_out)
    radius = np.linalg.norm(target) / np.exp(low / 2)
    slope = f_yy * radius + np.linalg.norm(held_out.T @ unseen)  # of f on the region
    joint = norm(np.array([[top * radius**2 / 2, top * radius], [top * radius, 1 + top]]))
    in_both = np.hypot(top * radius, top)
    lumped = [mu, max(joint, f_yy), slope, in_both, top]
    blocks = dict(mu=mu, L=1 + top, cross=top * radius, adjoint=slope / mu, f_yy=f_yy, tau_x=top * radius)
    return Analytic(
        Problem(_e_upper, _e_lower, Box(low, high), data),
        *closed_forms(_e_upper, _e_solution, _e_gradient, data),
        x0=jnp.linspace(low / 2, high / 2, features),
        y0=jnp.zeros(features),
        kappa=kappa,
        constants=Constants(*map(float, lumped)),
        sharp=SharpConstants.from_blocks(**{k: float(v) for k, v in (blocks | dict(tau_y=top, rho_x=top)).items()}),
        floor=0.0,
        region=float(radius),
    )


def _e_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((data["Z_held_out"] @ y - data["t_held_out"]) ** 2)


def _e_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((data["Z"] @ y - data["t"]) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def _e_hessian(data: Data, x: Array) -> Array:
    return data["Z"].T @ data["Z"] + jnp.diag(jnp.exp(x))


def _e_solution(data: Data, x: Array) -> Array:
    return jnp.linalg.solve(_e_hessian(data, x), data["Z"].T @ data["t"])


def _e_gradient(data: Data, x: Array) -> Array:
    y = _e_solution(data, x)
    v = jnp.linalg.solve(_e_hessian(data, x), jax.grad(_e_upper, argnums=1)(x, y, data))
    return -jnp.exp(x) * y * v
