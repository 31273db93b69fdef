r"""The statements of the theory as checks of a recorded run: left side, right side, and whether <= holds.

Each check also reports how close it came: the largest left/right over the resolved steps. A step is resolved unless
both sides are below 1e-9 times the size of the quantities that were subtracted, where rounding hides the result.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from proxbi.theory.constants import Schedule
from proxbi.theory.potential import Trace

SLACK = 1e-10
"""An inequality counts as violated when its left side exceeds the right by more than this times 1 + |size|."""

Series = Float[np.ndarray, " steps"]


class Check(NamedTuple):
    """One inequality along a run.

    Example: `audit`.
    """

    name: str
    """The inequality, by its number in the paper."""
    ratio: float
    """The largest left/right over the resolved steps: below 1 the inequality holds, and 1 minus it is the margin.
    NaN if no step is resolved."""
    resolved: int
    """The number of steps whose result is not hidden by rounding."""
    excess: float
    """The largest (left - right) / (1 + |size|) over all steps."""
    holds: bool
    """Whether it held in all steps, up to rounding."""


def compare(name: str, left: Series, right: Series, size: Series | float, slack: float = SLACK) -> Check:
    """left <= right, step by step; `size` is the size of the quantities whose difference is `left` or `right`."""
    scale = 1 + np.abs(size)
    resolved = np.broadcast_to(np.maximum(left, right) > 10 * slack * scale, np.shape(left))
    finite = bool(np.all(np.isfinite(left)) and np.all(np.isfinite(right)))
    ratios = np.where(right > 0, left / np.where(right > 0, right, 1), np.inf)
    ratio = float(np.max(ratios[resolved])) if resolved.any() else float("nan")
    excess = float(np.max((left - right) / scale)) if finite else float("inf")
    # A resolved step has at least six digits: an equality may come out as 1.0000001.
    return Check(name, ratio, int(resolved.sum()), excess, finite and excess <= slack and not ratio > 1 + 1e-6)


def proposition_1(trace: Trace, schedule: Schedule, beta: float | None = None) -> tuple[Series, Series]:
    """The decrease H_k - H_{k+1}, and the bound on it in Proposition 1: dx_k^2 / (4 beta) + w/8 (e_k^2 + e_{k+1}^2).

    **Arguments:**

    - `trace`: the run, made by `record`.
    - `schedule`: the constants.
    - `beta`: the outer step that was used, if not that of the schedule.

    Example: `audit`, which contains it.
    """
    beta, weight = schedule.beta if beta is None else beta, schedule.weight
    potential, squares = trace.potential(weight), trace.error**2
    return -np.diff(potential), trace.moved[:-1] ** 2 / (4 * beta) + weight / 8 * (squares[:-1] + squares[1:])


def audit(
    trace: Trace,
    schedule: Schedule,
    floor: float | None,
    *,
    beta: float | None = None,
    region: float = float("inf"),
    convex: bool = True,
    slack: float = SLACK,
) -> list[Check]:
    """Every inequality in the convergence proof, term by term, and the bounds that follow from it.

    **Arguments:**

    - `trace`: the run, made by `record`.
    - `schedule`: the constants in the inequalities.
    - `floor`: inf(Phi + h), or a lower bound of it; None leaves out the bounds that need it.
    - `beta`: the outer step that was used, if not that of the schedule.
    - `region`: the constants hold where all entries of x and y are at most this large.
    - `convex`: whether h is convex; the gradient mapping of Corollary 1 requires it, the distance does not.
    - `slack`: how far rounding may exceed a bound, relative to its terms.

    **Returns:** a `Check` for each inequality.

    >>> from proxbi.analytic import spectral_quadratic
    >>> from proxbi.theory import algorithm_1, closed_forms, record
    >>> case = spectral_quadratic(kappa=2.0, sizes=(2, 3))
    >>> reference = closed_forms(case.solution, case.value, case.gradient)
    >>> trace = record(case.problem, algorithm_1(case.constants), reference, case.x0, case.y0, steps=5)
    >>> all(check.holds for check in audit(trace, case.constants, case.floor))
    True
    """
    beta = schedule.beta if beta is None else beta
    c, ell, weight = schedule.error_factor, schedule.solution_factor, schedule.weight
    e2, dx = trace.error**2, trace.moved[:-1]
    potential = trace.potential(weight)
    decrease, required = proposition_1(trace, schedule, beta)
    descent = (1 / (2 * beta) - schedule.smoothness / 2 - schedule.young / 2) * dx**2
    checks: list[tuple[str, Series, Series, Series | float]] = [
        ("Lemma 1, smoothness", trace.gradient_moved[1:], schedule.smoothness * dx, trace.gradient[1:]),
        ("Lemma 1, hypergradient", trace.gradient_error, c * trace.error, trace.gradient),
        ("y* Lipschitz", trace.solution_moved[1:], ell * dx, trace.extent[1:]),
        ("(eq: 3), lower loop", e2, schedule.contraction * trace.warm**2, trace.extent**2),
        ("(eq: 3)", e2[1:], e2[:-1] / 4 + ell**2 / 4 * dx**2, trace.extent[1:] ** 2),
        ("(eq: 4)", descent, weight / 2 * e2[:-1] - np.diff(trace.value), trace.value[1:]),
        ("Proposition 1", required, decrease, potential[1:]),
    ]
    if floor is not None:
        gap = potential[0] - floor
        rate = schedule.rate_factor / (beta * np.arange(1, len(dx) + 1)) * gap
        checks += [
            ("Theorem 1, sum of decreases", np.cumsum(required), np.full_like(required, gap), float(potential[0])),
            ("Corollary 1, distance", _best(trace.distance) ** 2, rate, trace.distance[1:] ** 2),
        ]
        if convex:
            checks.append(("Corollary 1, gradient mapping", _best(trace.mapping) ** 2, rate, trace.mapping[1:] ** 2))
    if np.isfinite(region):
        checks.append(("region of the constants", trace.extent, np.full_like(trace.extent, region), 0.0))
    return [compare(*sides, slack=slack) for sides in checks]


def _best(series: Series) -> Series:
    """The smallest of the values 1, ..., k, for each k."""
    return np.minimum.accumulate(series[1:])
