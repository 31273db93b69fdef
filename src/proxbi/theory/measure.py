"""Estimates of the constants of a problem, at points and along segments."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _tree
from proxbi.linear import LinearSolver
from proxbi.problem import Problem
from proxbi.theory.constants import SharpConstants
from proxbi.theory.lanczos import cross_norm, lower_spectrum, upper_smoothness
from proxbi.theory.probes import Steepness, steepness
from proxbi.theory.reference import Exactly
from proxbi.theory.report import Finding

SAFETY = 1.1
"""For step sizes, estimates of L are multiplied and estimates of mu divided by this."""
PRODUCTS = 30
"""The maximal number of Hessian products for an estimate of the spectrum."""

Point = tuple[PyTree, PyTree]


class Spectrum(NamedTuple):
    """An upper bound of mu and a lower bound of L of g(x, .), from a few points."""

    mu: float
    L: float

    @property
    def measured(self) -> dict[str, float]:
        """By name."""
        return {"mu": self.mu, "L": self.L, "kappa": self.L / self.mu if self.mu > 0 else float("inf")}

    @property
    def finding(self) -> Finding:
        """The finding about strong convexity."""
        name = "1.1: g strongly convex in y"
        if not np.isfinite([self.mu, self.L]).all():
            return Finding(name, False, "the Hessian of g in y is NaN or infinite.")
        if self.mu <= 1e-12 * abs(self.L):
            return Finding(
                name, False, f"a direction of curvature {self.mu:.2g} was found: add a ridge term in y to lower."
            )
        return Finding(
            name, True, f"curvature from {self.mu:.3g} to {self.L:.3g} was found; it may be lower elsewhere."
        )


def spectrum(problem: Problem, points: list[Point], key: PRNGKeyArray) -> Spectrum:
    """The extreme Ritz values over all points."""
    ritz = [lower_spectrum(problem, x, y, PRODUCTS, key) for x, y in points]
    return Spectrum(min(float(r.smallest) for r in ritz), max(float(r.largest) for r in ritz))


def _grad_upper(problem: Problem, at: Point) -> PyTree:
    return problem.grad_upper(*at)


def _grad_lower(problem: Problem, at: Point) -> PyTree:
    return problem.grad_lower(*at)


def _curvature(problem: Problem, v: PyTree, at: Point) -> PyTree:
    return problem.hvp(*at)(v)


def _cross(problem: Problem, v: PyTree, at: Point) -> PyTree:
    return problem.cross(*at)(v)


class Blocks(NamedTuple):
    """Norms at the lower solution."""

    adjoint: PyTree
    cross: jax.Array
    upper: jax.Array


@eqx.filter_jit
def _blocks(problem: Problem, linear: LinearSolver, x: PyTree, y: PyTree, key: PRNGKeyArray) -> Blocks:
    v = linear.solve(problem.hvp(x, y), problem.grad_upper(x, y)[1])[0]
    first, second = jax.random.split(key)
    return Blocks(v, cross_norm(problem, x, y, PRODUCTS, first), upper_smoothness(problem, x, y, PRODUCTS, second))


# The Hessians are probed along the adjoint v: (g_yy - g_yy') v and (g_xy - g_xy') v are what the proofs bound by rho
# and tau times |v|.
def measure(
    problem: Problem, linear: LinearSolver, exactly: Exactly, x: PyTree, y0: PyTree, key: PRNGKeyArray
) -> tuple[dict[str, float], list[Finding]]:
    """The blocks for the sharper constants, and findings about smoothness."""
    keys = jax.random.split(key, 3)
    y = exactly.solution
    blocks = _blocks(problem, linear, x, y, keys[0])
    size = float(_tree.norm(blocks.adjoint))
    unit = _tree.scale(1 / size, blocks.adjoint) if size > 0 else blocks.adjoint
    still_x, still_y = _tree.zeros_like(x), _tree.zeros_like(y)
    directions = {
        "x, downhill": (_length(exactly.gradient, x), still_y),
        "x, random": (_random(x, keys[1]), still_y),
        "y, to y*": (still_x, _tree.subtract(y, y0)),
        "y, random": (still_x, _random(y, keys[2])),
    }
    functions = {
        "f": Partial(_grad_upper, problem),
        "g": Partial(_grad_lower, problem),
        "rho": Partial(_curvature, problem, unit),
        "tau": Partial(_cross, problem, unit),
    }
    found = steepness(functions, (x, y0), directions)

    def largest(function: str, block: str) -> float:
        return max(piece.lipschitz for (f, d), piece in found.items() if f == function and d.startswith(block))

    measured = {
        "|g_xy|": float(blocks.cross),
        "|v|": size,
        "L of f": max(float(blocks.upper), largest("f", "x"), largest("f", "y")),
    }
    measured |= {f"{name} in {block}": largest(name, block) for name in ("tau", "rho") for block in ("x", "y")}
    gradients = [piece for (f, _), piece in found.items() if f in ("f", "g")]
    hessians = [piece for (f, _), piece in found.items() if f in ("rho", "tau")]
    return measured, [
        _smoothness("2.1: gradients Lipschitz", gradients, "a gradient of f or g"),
        _smoothness("2.2: Hessian, Jacobian Lipschitz", hessians, "g_yy or g_xy"),
    ]


def _smoothness(name: str, pieces: list[Steepness], what: str) -> Finding:
    if not all(piece.finite for piece in pieces):
        return Finding(name, False, f"{what} is NaN or infinite at a point near (x0, y0).")
    if not all(piece.bounded for piece in pieces):
        return Finding(
            name, False, f"{what} jumps: its difference quotient grows without bound on ever shorter intervals."
        )
    return Finding(name, True, "difference quotients settle on ever shorter intervals of a few segments.")


def _length(direction: PyTree, like: PyTree) -> PyTree:
    """`direction` with a tenth of the length of `like`, and at least 0.1."""
    norm = _tree.norm(direction)
    return _tree.scale(0.1 * (1 + _tree.norm(like)) / jnp.where(norm > 0, norm, 1), direction)


def _random(like: PyTree, key: PRNGKeyArray) -> PyTree:
    flat, unravel = ravel_pytree(like)
    return _length(unravel(jax.random.normal(key, flat.shape, flat.dtype)), like)


def estimated_constants(measured: dict[str, float]) -> SharpConstants:
    """The sharper constants from estimates of the blocks; one number bounds all second derivatives of f."""
    tiny = 1e-12 * measured["L"]  # avoids an infinite step if the problem does not depend on x or f
    smooth = max(measured["L of f"] * SAFETY, tiny)
    return SharpConstants.from_blocks(
        mu=measured["mu"] / SAFETY,
        L=measured["L"] * SAFETY,
        cross=max(measured["|g_xy|"] * SAFETY, tiny),
        adjoint=measured["|v|"] * SAFETY,
        f_xx=smooth,
        f_xy=smooth,
        f_yy=smooth,
        **{
            f"{name}_{block}": SAFETY * measured[f"{name} in {block}"]
            for name in ("tau", "rho")
            for block in ("x", "y")
        },
    )
