"""The lower level, as far as it is seen near y*, and the hypergradient."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial, keystr, tree_leaves_with_path
from jaxtyping import PyTree

from proxbi import _compile, _tree
from proxbi._diagnose._page import RIDGE, Level, Look, leaves, level
from proxbi._diagnose._start import Start, random_direction
from proxbi._lower_level import first_probe, look, margin
from proxbi._tree import Scalar
from proxbi.hypergradient import Outcome
from proxbi.problem import Problem
from proxbi.theory.lanczos import Ritz, lower_spectrum
from proxbi.theory.probes import steepness

ROUNDING = 100.0  # units of rounding by which sums of many products may be off
_PRODUCTS = 30  # with g_yy, for the range of its curvatures
_KAPPA_SINGLE = 1e5  # above, float32 leaves less than two digits of a solution
_KAPPA_DOUBLE = 1e12  # above, float64 leaves less than four
_USEFUL = 0.1  # the error of a hypergradient, relative to it, with which it can be used
_REACH = 0.1  # relative: how far around y* kinks are looked for
_DIRECTIONS = 3  # that kinks are looked for along
_FALLEN = 1e-3  # of |g_y| at y0: less than this is not large
_RUNS_AWAY = f"y runs away while its gradient falls: lower has no minimiser in y. {RIDGE}"
_NEGATIVE = (
    "lower is not convex in y there. Check its sign and the order of its arguments, start at a y0 near a minimiser, or "
    "add a ridge term above {ridge:.2g} * jnp.sum(y**2). For a network use ProxBiO(ITD(Nesterov(...)), step_size), "
    "which differentiates training steps."
)
_ON_THE_FACE = (
    "lower alone is not strongly convex in y. That will do if it is so along the active face of y*, as with a Lasso of "
    "more coefficients than rows; if not, add a ridge term."
)
_OUTCOMES = {
    Outcome.UNSOLVED: "its gradient stays large. Lower is not smooth (smooth it), or has no minimiser in y (add a "
    "ridge term), or is not convex between y0 and there (start at a better y0).",
    Outcome.NEGATIVE_CURVATURE: f"lower is not strongly convex in y. {RIDGE}",
    Outcome.NONFINITE: "f, g or a derivative became NaN or infinite during the solve. Start at a y0 inside the "
    "domain, well away from its boundary.",
}


def solution(start: Start) -> Iterator[Look]:
    if start.found is None:
        return
    outcome, left = Outcome(int(start.found.outcome)), float(start.found.lower_residual)
    number = f"|g_y| = {left:.1e} at |y| = {float(_tree.norm(start.solution)):.3g}"
    verdict = "solved." if start.solved else f"not solved: {_reason(start, outcome, left)}"
    yield Look("lower solution", number, verdict, level(start.solved))


def _reason(start: Start, outcome: Outcome, left: float) -> str:
    at_y0 = float(_tree.norm(start.problem.grad_lower(start.x, start.y)))
    return _RUNS_AWAY if outcome is Outcome.UNSOLVED and left < _FALLEN * at_y0 else _OUTCOMES[outcome]


def active_set(start: Start) -> Iterator[Look]:
    """How far the next change of the active set of a lower regularizer is."""
    if start.problem.lower_regularizer is None or not start.solved:
        return
    distance = float(_margin(start.problem, start.x, start.solution))
    near = distance <= float(jnp.finfo(jax.tree.leaves(start.y)[0].dtype).eps) ** 0.5
    verdict = "away from changes." if not near else "y* is at a change of it: the hypergradient is that of one side."
    name = type(start.problem.lower_regularizer_at(start.x)).__name__
    number = f"{name}, next change at {distance:.2g} of |y - s g_y|"
    yield Look("active set", number, verdict, Level.NOTE if near else Level.OK)


@_compile.jit
def _margin(problem: Problem, x: PyTree, y: PyTree) -> Scalar:
    return margin(problem, x, look(problem, x, y, first_probe(problem, y))[0])


def curvatures(start: Start) -> Iterator[Look]:
    """[mu, L] at y0 and y*; the smallest Ritz value is an upper bound of mu, so only one sign of it is proof."""
    places = {"y0": start.y} | ({} if start.found is None else {"y*" if start.solved else "last y": start.solution})
    kappas = []
    for name, y in places.items():
        ritz: Ritz = lower_spectrum(start.problem, start.x, y, _PRODUCTS)
        low, high, dtype = float(ritz.smallest), float(ritz.largest), ritz.smallest.dtype
        kappas += [high / low] if low > 0 else []
        verdict = _convexity(low, high, dtype)
        if start.problem.lower_regularizer is not None and verdict[1] is Level.FAULT:
            verdict = _ON_THE_FACE, Level.NOTE
        yield Look(f"curvature at {name}", f"from {low:.3g} to {high:.3g}", *verdict)
    if kappas:
        yield _conditioning(max(kappas), jax.tree.leaves(start.y)[0].dtype)


def _convexity(low: float, high: float, dtype: Any) -> tuple[str, Level]:
    hidden = abs(low) <= ROUNDING * float(jnp.finfo(dtype).eps) * high
    if not np.isfinite([low, high]).all():
        return "g_yy is NaN or infinite. Check the domain of lower.", Level.FAULT
    if hidden and high > 0 and dtype == jnp.float32:
        return f"float32 cannot distinguish the smallest from 0. Check again in float64; or: {RIDGE}", Level.NOTE
    if not hidden and low < 0:
        return _NEGATIVE.format(ridge=-low / 2), Level.FAULT
    if hidden or low <= 0:
        return f"lower is not strongly convex in y. {RIDGE}", Level.FAULT
    return "strongly convex, as far as seen.", Level.OK


def _conditioning(kappa: float, dtype: Any) -> Look:
    single = dtype == jnp.float32
    number = f"kappa >= {kappa:.3g} in {dtype}"
    if kappa <= (_KAPPA_SINGLE if single else _KAPPA_DOUBLE):
        return Look("conditioning", number, "the precision will do.")
    advice = (
        'Use float64: jax.config.update("jax_enable_x64", True) before all else.'
        if single
        else "Rescale y so that its entries are of similar size, or add a larger ridge term to lower."
    )
    return Look("conditioning", number, f"rounding will hide part of the solution. {advice}", Level.NOTE)


def kinks(start: Start) -> Iterator[Look]:
    """Whether slopes of f and g jump on the way through y*, in random directions."""
    problem, x, y = start.problem, start.x, start.solution
    slopes = {"lower": _lower_slope, "upper": _upper_slope}
    jumps = dict.fromkeys(slopes, 0)
    for key in jax.random.split(start.key, _DIRECTIONS):
        direction = _tree.scale(_REACH, random_direction(key, y))
        functions = {name: Partial(slope, problem, x, direction) for name, slope in slopes.items()}
        for (name, _), seen in steepness(functions, y, {"y": direction}).items():
            jumps[name] += seen.finite and not seen.bounded
    for name, jumped in jumps.items():
        number = f"{jumped} of {_DIRECTIONS} lines through y* have a kink"
        if not jumped:
            yield Look(f"{name} in y", number, "it looks smooth.")
        elif name == "lower":
            smooth = "Smooth it: softplus for a hinge or relu, sqrt(y**2 + 1e-6) for |y|, logsumexp for a maximum."
            yield Look("lower in y", number, f"it is not smooth. {smooth}", Level.FAULT)
        else:
            yield Look(
                "upper in y", number, "it is not smooth; where the answer sits on a kink, steps fail.", Level.NOTE
            )


def _lower_slope(problem: Problem, x: PyTree, direction: PyTree, y: PyTree) -> Scalar:
    return _tree.dot(problem.grad_lower(x, y), direction)


def _upper_slope(problem: Problem, x: PyTree, direction: PyTree, y: PyTree) -> Scalar:
    return _tree.dot(problem.grad_upper(x, y)[1], direction)


def hypergradient(start: Start) -> Iterator[Look]:
    if start.found is None or not start.solved:
        return
    upper_x, upper_y = start.problem.grad_upper(start.x, start.found.y)
    implicit = _tree.subtract(upper_x, start.grad)
    sizes = [float(_tree.norm(tree)) for tree in (upper_x, implicit, start.grad)]
    number = "|f_x| = {:.3g}, |g_xy v| = {:.3g}, |grad Phi| = {:.3g}".format(*sizes)
    flat = (
        "x0 is flat: a dead relu, a square or product at 0, a saturated sigmoid, swapped arguments, or a stationary "
        "point by chance. Start elsewhere."
    )
    if sizes[2] == 0:
        yield Look("hypergradient", number, flat, Level.FAULT)
        return
    error = float(start.found.error) / sizes[2]
    rough = f"too uncertain: lower has no minimiser in y, or hardly any curvature. {RIDGE}"
    yield Look(
        "hypergradient",
        f"{number}, error {error:.0e} of it",
        "known." if error < _USEFUL else rough,
        level(error < _USEFUL),
    )
    dead = [keystr(path) for path, leaf in tree_leaves_with_path(start.grad) if not bool(jnp.any(leaf != 0))]
    if dead:
        verdict = f"nothing changes with {leaves('x', dead)} at x0. {flat.split(': ', 1)[1].capitalize()}"
        yield Look("hypergradient", "exactly 0 in part", verdict, Level.FAULT)
    if not float(_tree.norm(upper_y)):
        verdict = "upper does not see y at y*, so that the lower level plays no part there. A dead relu?"
        yield Look("f_y at y*", "exactly 0", verdict, Level.NOTE)
