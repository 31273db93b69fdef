"""Independent NumPy references for the regularizers: values written from their definitions, and slow minimisers.

Nothing here imports proxbi. A scalar `term(u, **parameters)` is one term of a separable h, vectorised over u; a
`value(u, **parameters)` reduces the trailing axes of one x and broadcasts over the leading ones. The minimisers never
look at a prox: they search a grid and then finer grids around the best point of the one before.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SLACK = 1e-12  # relative: how far outside a set a reference still calls a point feasible


# --- terms of separable functions -----------------------------------------------------------------------------------


def capped(u: Floats, strength: float, cap: float) -> Floats:
    return strength * np.where(np.abs(u) < cap, np.abs(u), cap)


def elastic_net(u: Floats, strength: float, l1_ratio: float) -> Floats:
    return strength * l1_ratio * np.abs(u) + strength * (1 - l1_ratio) * np.square(u) / 2


def huber(u: Floats, strength: float, delta: float) -> Floats:
    return strength * np.where(np.abs(u) <= delta, np.square(u) / 2, delta * (np.abs(u) - delta / 2))


def l0(u: Floats, strength: float) -> Floats:
    return strength * (u != 0)


def log_sum(u: Floats, strength: float, epsilon: float) -> Floats:
    return strength * np.log(1 + np.abs(u) / epsilon)


def power(u: Floats, strength: float, p: float) -> Floats:
    return strength * np.abs(u) ** p


def mcp(u: Floats, strength: float, theta: float) -> Floats:
    size = np.abs(u)
    return np.where(size <= theta * strength, strength * size - size**2 / (2 * theta), theta * strength**2 / 2)


def scad(u: Floats, strength: float, a: float) -> Floats:
    size = np.abs(u)
    middle = (2 * a * strength * size - size**2 - strength**2) / (2 * (a - 1))
    beyond = strength**2 * (a + 1) / 2
    return np.where(size <= strength, strength * size, np.where(size <= a * strength, middle, beyond))


def stvs(u: Floats, strength: float) -> Floats:
    """The penalty whose prox with step 1 is x max(1 - (strength/x)^2, 0)."""
    angle = np.arcsinh(np.abs(u) / (2 * strength))
    return strength**2 * (angle + 0.5 - np.exp(-2 * angle) / 2)


def between(u: Floats, lower: float, upper: float) -> Floats:
    slack = SLACK * (1 + np.abs(u))
    return np.where((u >= lower - slack) & (u <= upper + slack), 0.0, np.inf)


def outside(u: Floats, lower: float, upper: float) -> Floats:
    slack = SLACK * (1 + np.abs(u))
    return np.where((u > lower + slack) & (u < upper - slack), np.inf, 0.0)


# --- values of functions of the whole array -------------------------------------------------------------------------


def singular_values(u: Floats) -> Floats:
    return np.linalg.svd(u, compute_uv=False)


def feasible(violation: Floats, scale: float | Floats) -> Floats:
    return np.where(violation <= SLACK * (1 + scale), 0.0, np.inf)


def simplex(u: Floats, scale: float) -> Floats:
    return feasible(np.maximum(-u.min(axis=-1), np.abs(u.sum(axis=-1) - scale)), scale)


def psd(u: Floats) -> Floats:
    transposed = np.swapaxes(u, -1, -2)
    asymmetry = np.abs(u - transposed).max(axis=(-2, -1))
    lowest = np.linalg.eigvalsh((u + transposed) / 2).min(axis=-1)
    return feasible(np.maximum(asymmetry, -lowest), np.abs(u).max(axis=(-2, -1)))


def rank_ball(u: Floats, rank: int) -> Floats:
    values = singular_values(u)
    return feasible(values[..., rank:].max(axis=-1), values[..., 0])


# --- minimisers -----------------------------------------------------------------------------------------------------


def minimum(term: Callable[[Floats], Floats], x: Floats, step: float, kinks: Sequence[float]) -> tuple[Floats, Floats]:
    """The least value of term(u) + (u - x)^2 / (2 step) for each entry of x, and where: by grids only."""

    def best(u: Floats) -> tuple[Floats, Floats]:
        values = term(u) + (u - x) ** 2 / (2 * step)
        index = np.argmin(values, axis=0)[None]
        return np.take_along_axis(values, index, 0), np.take_along_axis(u, index, 0)

    scale = max([1.0, *np.abs(kinks)])
    fixed = np.concatenate([[0.0], kinks, _fan(scale)])
    grid = np.concatenate([np.tile(fixed[:, None], (1, x.size)), x[None], np.linspace(-1, 2, 241)[:, None] * x])
    value, point = best(grid)
    width = np.abs(x) / 40 + scale / 30  # more than the gaps of the grid
    for _ in range(9):
        lower, nearer = best(point + width * np.linspace(-1, 1, 31)[:, None])
        value, point = np.minimum(value, lower), np.where(lower < value, nearer, point)
        width = width / 7
    return value[0], point[0]


def _fan(scale: float) -> Floats:
    tails = np.logspace(-9, 9, 145)
    return np.concatenate([np.linspace(-3, 3, 361) * scale, tails, -tails])


def radial(value: Callable[[Floats], Floats], x: Floats, step: float) -> Floats:
    """The minimiser among the multiples of x: the minimiser itself, for functions of the norm."""
    size = np.linalg.norm(x)
    direction = x / size if size > 0 else x
    _, best = minimum(lambda u: value(u[..., None] * direction), np.array([size]), step, [0.0])
    return best[0] * direction


def grouped(x: Floats, step: float, strength: float, labels: NDArray[np.int64]) -> Floats:
    result = np.zeros_like(x)
    for label in np.unique(labels):
        where = labels == label
        result[where] = radial(lambda u: strength * np.linalg.norm(u, axis=-1), x[where], step)
    return result


def bisect(equation: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if equation(middle) > 0 else (low, middle)
    return (low + high) / 2


def project_simplex(x: Floats, scale: float) -> Floats:
    tau = bisect(lambda t: np.maximum(x - t, 0).sum() - scale, x.min() - scale, x.max())
    return np.maximum(x - tau, 0)


def project_l1(x: Floats, radius: float) -> Floats:
    if np.abs(x).sum() <= radius:
        return x
    tau = bisect(lambda t: np.maximum(np.abs(x) - t, 0).sum() - radius, 0, np.abs(x).max())
    return np.sign(x) * np.maximum(np.abs(x) - tau, 0)


def project_l2(x: Floats, radius: float) -> Floats:
    """Through the multiplier of |u| <= radius: u = x / (1 + m)."""
    if np.linalg.norm(x) <= radius:
        return x
    ratio = bisect(lambda m: np.linalg.norm(x / (1 + m)) - radius, 0, np.linalg.norm(x) / radius)
    return x / (1 + ratio)


def project_hyperplane(x: Floats, normal: Floats, offset: float) -> Floats:
    """Through the linear system of the optimality conditions."""
    system = np.block([[np.eye(x.size), normal[:, None]], [normal[None, :], np.zeros((1, 1))]])
    return np.linalg.solve(system, np.append(x, offset))[:-1]


def project_halfspace(x: Floats, normal: Floats, offset: float) -> Floats:
    return x if normal @ x <= offset else project_hyperplane(x, normal, offset)


def project_sparse(x: Floats, k: int) -> Floats:
    """By trying every support."""
    supports = [np.isin(np.arange(x.size), kept) for kept in itertools.combinations(range(x.size), k)]
    return min((np.where(kept, x, 0) for kept in supports), key=lambda u: ((u - x) ** 2).sum())


def project_spectral(x: Floats, radius: float) -> Floats:
    """On the matrices with singular values <= radius, through the eigenvalues of x'x."""
    squares, vectors = np.linalg.eigh(x.T @ x)
    values = np.sqrt(np.maximum(squares, 0))
    return x @ (vectors * np.minimum(1, radius / np.maximum(values, 1e-300))) @ vectors.T


def project_rank(x: Floats, rank: int) -> Floats:
    _, vectors = np.linalg.eigh(x.T @ x)
    return x @ vectors[:, -rank:] @ vectors[:, -rank:].T


def project_psd(x: Floats) -> Floats:
    """Higham's formula: the mean of the symmetric part and its polar factor."""
    symmetric = (x + x.T) / 2
    return (symmetric + scipy.linalg.polar(symmetric)[1]) / 2


def prox_max(x: Floats, step: float) -> Floats:
    """The prox of the largest entry: level it down until the removed mass is the step."""
    level = bisect(lambda t: np.maximum(x - t, 0).sum() - step, x.min() - step, x.max())
    return np.minimum(x, level)


def log_sum_threshold(moved: float, epsilon: float) -> float:
    """Where the prox of the log-sum penalty leaves 0."""
    if moved <= epsilon**2:
        return moved / epsilon

    def loss(x: float) -> float:
        r = (x - epsilon + np.sqrt(max((x + epsilon) ** 2 - 4 * moved, 0))) / 2
        return moved * np.log1p(r / epsilon) - r * (x - r / 2)

    return bisect(loss, 2 * np.sqrt(moved) - epsilon, moved / epsilon)


def power_threshold(moved: float, p: float) -> float:
    """Where the prox of the power penalty leaves 0."""
    smallest = (2 * moved * (1 - p)) ** (1 / (2 - p))
    return smallest + moved * p * smallest ** (p - 1)
