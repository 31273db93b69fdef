r"""The checks of the theory on a problem of one's own: what its constants look like, which assumption looks violated, and
how much of the decrease that happens Proposition 1 asks for.

What is found here is evidence and not proof: points are sampled, Ritz values lie inside the spectrum, segments miss what
is beside them. A violation that is reported was seen; an assumption that is not reported as violated was only not refuted.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi.linear import CG, Direct, LinearSolver
from proxbi.lower import Exact, GradientDescent, LowerSolver, Nesterov
from proxbi.problem import Problem
from proxbi.solvers.prox_bio import ProxBiO
from proxbi.theory.checks import SLACK, Check, audit
from proxbi.theory.constants import Schedule, SharpConstants
from proxbi.theory.lanczos import Ritz, cross_norm, lower_spectrum, upper_smoothness
from proxbi.theory.potential import Reference, Repeated, algorithm_1, record
from proxbi.theory.probes import Steepness, rays, steepness
from proxbi.validate import checked

DENSE = 400
"""Up to this dimension of y the reference is a dense one: Newton's method and Cholesky."""
SAFETY = 1.1
"""Estimates of L are multiplied, those of mu divided by this before step sizes are made of them."""


class Finding(NamedTuple):
    """What was seen of one assumption."""

    assumption: str
    holds: bool
    """False if a violation was seen."""
    sentence: str


@dataclass(frozen=True)
class Report:
    """What `verify` returns. `str(report)` is a table with sentences."""

    findings: list[Finding]
    measured: dict[str, float]
    """Estimates, by name; those of Lipschitz constants are lower bounds, that of mu is an upper bound."""
    schedule: Schedule | None
    """The constants that the run was made and checked with; None if no run was possible."""
    estimated: bool
    """Whether they were estimated here, rather than given."""
    checks: list[Check]

    @property
    def violated(self) -> list[str]:
        """The assumptions that a violation was seen of."""
        return [finding.assumption for finding in self.findings if not finding.holds]

    @property
    def margin(self) -> float:
        """1 - (the decrease that Proposition 1 asks for) / (that of H), in the worst step: negative if it was violated.
        NaN if there was no run, or none of its steps moved H by more than rounding."""
        return next((1 - check.ratio for check in self.checks if check.name == "Proposition 1"), float("nan"))

    @property
    def ok(self) -> bool:
        """Whether no violation was seen and every inequality held."""
        return not self.violated and bool(self.checks) and all(check.holds for check in self.checks)

    def __str__(self) -> str:
        lines = ["assumptions"]
        lines += [f"  {'ok ' if f.holds else 'NO '} {f.assumption:<32} {f.sentence}" for f in self.findings]
        lines += ["measured (estimates: mu from above, the others from below)"] if self.measured else []
        lines += [f"      {name:<32} {value:.4g}" for name, value in self.measured.items()]
        if self.schedule is not None:
            s, kind = self.schedule, "estimated" if self.estimated else "given"
            steps = f"alpha = {s.alpha:.3g}, eta = {s.eta:.3g}, T = {s.T}, beta = {s.beta:.3g}"
            lines += [f"step sizes from {kind} constants: {steps}", "inequalities along the run (left / right, at most 1)"]
        for check in self.checks:
            ratio = f"{check.ratio:.2g}" if check.resolved else "-"
            note = "" if check.resolved else "  (every step is below rounding)"
            lines.append(f"  {'ok ' if check.holds else 'NO '} {check.name:<32} {ratio}{note}")
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.violated:
            return f"The theory does not cover this problem as it stands: see {'; '.join(self.violated)}."
        failed = [check.name for check in self.checks if not check.holds]
        if failed:
            blame = "the estimated constants are too optimistic" if self.estimated else "the constants given are wrong"
            return f"No assumption was seen to fail, but {', '.join(failed)} did: {blame}, or an assumption fails unseen."
        if np.isnan(self.margin):
            return "Nothing contradicts the theory, but the steps it allows are too short to be seen in this precision."
        return f"Nothing contradicts the theory; Proposition 1 holds with a margin of {self.margin:.0%} in its worst step."


def verify(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    *,
    constants: Schedule | None = None,
    steps: int = 100,
    lower: LowerSolver | None = None,
    max_T: int = 10_000,
    seed: int = 0,
) -> Report:
    r"""Check the assumptions and the inequalities of the convergence theory on `problem`, near (x0, y0).

    **Arguments:**

    - `constants`: `Constants` or `SharpConstants` where they are known; estimated otherwise, and marked so.
    - `steps`: how many outer steps of Algorithm 1 to check, with the step sizes that the constants give.
    - `lower`: a solver whose y is to count as y*; by default a dense one up to dimension 400, else a long accelerated run.
    - `max_T`: the most lower steps that a run may take; a problem that asks for more is only measured.

    Use double precision (`jax.enable_x64`): in single precision few steps can be told from rounding.

    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2 - (x * y) ** 2))
    >>> verify(problem, jnp.ones(2), jnp.zeros(2)).violated
    ['1.1: g strongly convex in y']
    """
    _check.positive_int("steps", steps)
    problem, x0, y0 = checked(problem, ProxBiO(_any_hypergradient(), 1.0), x0, y0)
    keys = jax.random.split(jax.random.key(seed), 6)
    here = lower_spectrum(problem, x0, y0, key=keys[0])
    convexity = _convexity([here])
    if not convexity.holds:
        return Report([convexity], _of_spectrum([here]), None, constants is None, [])

    small = ravel_pytree(y0)[0].size <= DENSE
    linear: LinearSolver = Direct() if small else CG(2000, 1e-12)
    reference = Reference.computed(problem, lower or _reference_solver(here, small), y0, linear)
    y = reference.solution(x0)
    if not _tree.all_finite((y, reference.gradient(x0))):
        solved = Finding("1.1: g strongly convex in y", False, "y*(x0) was not found: g(x0, .) may have no minimum.")
        return Report([solved], _of_spectrum([here]), None, constants is None, [])
    spectra = [here, lower_spectrum(problem, x0, y, key=keys[0])]
    measured, smooth = _measure(problem, reference, x0, y0, y, spectra, keys)
    findings = [_convexity(spectra), _level_sets(problem, reference, x0, keys[4]), *smooth]
    if any(not finding.holds for finding in (findings[0], *smooth)) and constants is None:
        return Report(findings, measured, None, True, [])

    schedule = constants or _schedule(measured)
    if schedule.T > max_T:
        return Report(findings, measured, schedule, constants is None, [])
    trace = record(problem, algorithm_1(schedule, linear=linear), reference, x0, y0, steps)
    slack = max(SLACK, 1e3 * float(jnp.finfo(ravel_pytree(y0)[0].dtype).eps))
    return Report(findings, measured, schedule, constants is None, audit(trace, schedule, None, slack=slack))


def _any_hypergradient() -> Any:
    from proxbi.hypergradient import AID

    return AID(GradientDescent(1.0, steps=1))


def _reference_solver(ritz: Ritz, small: bool) -> LowerSolver:
    if small:
        return Exact()
    top, root = SAFETY * float(ritz.largest), float(jnp.sqrt(ritz.largest / ritz.smallest)) * SAFETY
    return Repeated(Nesterov(1 / top, (root - 1) / (root + 1), steps=1), int(40 * root) + 1)


def _of_spectrum(spectra: list[Ritz]) -> dict[str, float]:
    mu, top = min(float(ritz.smallest) for ritz in spectra), max(float(ritz.largest) for ritz in spectra)
    return {"mu": mu, "L": top, "kappa": top / mu if mu > 0 else float("inf")}


def _convexity(spectra: list[Ritz]) -> Finding:
    name = "1.1: g strongly convex in y"
    found = _of_spectrum(spectra)
    mu, top = found["mu"], found["L"]
    if not np.isfinite([mu, top]).all():
        return Finding(name, False, "the Hessian of g in y is NaN or infinite at (x0, y0).")
    if mu <= 100 * float(jnp.finfo(spectra[0].smallest.dtype).eps) * abs(top):
        return Finding(name, False, f"a direction of curvature {mu:.2g} was met: add a ridge term in y to lower.")
    return Finding(name, True, f"curvature from {mu:.3g} to {top:.3g} was met; directions not met may be flatter.")


def _level_sets(problem: Problem, reference: Reference, x0: PyTree, key: PRNGKeyArray) -> Finding:
    name = "1.3: bounded level sets"
    along = [ray for ray in rays(problem.regularizer, reference, x0, key) if ray.known]
    if not along:
        return Finding(name, True, "could not be looked at: y* was not found far from x0.")
    if any(ray.falls for ray in along):
        return Finding(name, False, "Phi + h falls in proportion to the distance on some ray: no lower bound, no minimum.")
    if not all(ray.grows for ray in along):
        sentence = "Phi + h stops growing on some ray, so iterates may run away (hyper-cleaning does this); a Box on x helps."
        return Finding(name, False, sentence)
    return Finding(name, True, f"Phi + h grows, or is infinite, far out on {len(along)} rays.")


def _grad_upper(problem: Problem, at: tuple[PyTree, PyTree]) -> PyTree:
    return problem.grad_upper(*at)


def _grad_lower(problem: Problem, at: tuple[PyTree, PyTree]) -> PyTree:
    return problem.grad_lower(*at)


def _curvature(problem: Problem, v: PyTree, at: tuple[PyTree, PyTree]) -> PyTree:
    return problem.hvp(*at)(v)


def _cross(problem: Problem, v: PyTree, at: tuple[PyTree, PyTree]) -> PyTree:
    return problem.cross(*at)(v)


def _measure(
    problem: Problem, reference: Reference, x: PyTree, y0: PyTree, y: PyTree, spectra: list[Ritz], keys: PRNGKeyArray
) -> tuple[dict[str, float], list[Finding]]:
    """The blocks that the sharper constants are made of, and what was seen of the smoothness."""
    linear: LinearSolver = Direct() if ravel_pytree(y)[0].size <= DENSE else CG(2000, 1e-12)
    v = linear.solve(problem.hvp(x, y), problem.grad_upper(x, y)[1])[0]
    adjoint = float(_tree.norm(v))
    unit = _tree.scale(1 / adjoint, v) if adjoint > 0 else v
    directions = {
        "x": [(_length(reference.gradient(x), x), _tree.zeros_like(y)), (_random(x, keys[1]), _tree.zeros_like(y))],
        "y": [(_tree.zeros_like(x), _tree.subtract(y, y0)), (_tree.zeros_like(x), _random(y, keys[2]))],
    }
    functions = {
        "f": Partial(_grad_upper, problem),
        "g": Partial(_grad_lower, problem),
        "rho": Partial(_curvature, problem, unit),
        "tau": Partial(_cross, problem, unit),
    }
    found = {
        (name, block): [steepness(function, (x, y0), d) for d in directions[block] if _tree.norm(d) > 0]
        for name, function in functions.items()
        for block in ("x", "y")
    }
    measured = _of_spectrum(spectra) | {
        "|g_xy|": float(cross_norm(problem, x, y, 30, keys[3])),
        "|v|": adjoint,
        "L of f": max(
            float(upper_smoothness(problem, x, y, 30, keys[5])), _lipschitz(found["f", "x"]), _lipschitz(found["f", "y"])
        ),
    }
    measured |= {f"{name} in {block}": _lipschitz(found[name, block]) for name in ("tau", "rho") for block in ("x", "y")}
    gradients = [s for key, pieces in found.items() for s in pieces if key[0] in ("f", "g")]
    hessians = [s for key, pieces in found.items() for s in pieces if key[0] in ("rho", "tau")]
    return measured, [
        _smoothness("2.1: gradients Lipschitz", gradients, "a gradient of f or g"),
        _smoothness("2.2: Hessian, Jacobian Lipschitz", hessians, "g_yy or g_xy"),
    ]


def _smoothness(name: str, pieces: list[Steepness], what: str) -> Finding:
    if all(piece.bounded for piece in pieces):
        return Finding(name, True, "difference quotients settle on shorter and shorter pieces of a few segments.")
    if all(np.all(np.isfinite(piece.quotients)) for piece in pieces):
        return Finding(name, False, f"{what} jumps: its difference quotient grows without bound on ever shorter pieces.")
    return Finding(name, False, f"{what} is NaN or infinite at a point near (x0, y0).")


def _lipschitz(pieces: list[Steepness]) -> float:
    return max((piece.lipschitz for piece in pieces), default=0.0)


def _length(direction: PyTree, like: PyTree) -> PyTree:
    """`direction` with a tenth of the length of `like`, and at least 0.1."""
    norm = _tree.norm(direction)
    return _tree.scale(0.1 * (1 + _tree.norm(like)) / jnp.where(norm > 0, norm, 1), direction)


def _random(like: PyTree, key: PRNGKeyArray) -> PyTree:
    flat, unravel = ravel_pytree(like)
    return _length(unravel(jax.random.normal(key, flat.shape, flat.dtype)), like)


def _schedule(measured: dict[str, float]) -> SharpConstants:
    """The sharper constants from estimates of the blocks; all second derivatives of f by one number."""
    tiny = 1e-12 * measured["L"]  # a problem in which x or f plays no part has no use for an infinite step
    smooth = measured["L of f"]
    return SharpConstants.from_blocks(
        mu=measured["mu"] / SAFETY,
        L=measured["L"] * SAFETY,
        cross=max(measured["|g_xy|"] * SAFETY, tiny),
        adjoint=measured["|v|"] * SAFETY,
        f_xx=smooth,
        f_xy=smooth,
        f_yy=max(smooth, tiny),
        **{f"{name}_{block}": SAFETY * measured[f"{name} in {block}"] for name in ("tau", "rho") for block in ("x", "y")},
    )
