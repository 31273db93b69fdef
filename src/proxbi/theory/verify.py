r"""The checks of the theory on your own problem: estimates of its constants, assumptions that look violated, and the
margin by which Proposition 1 holds.

The findings are evidence, not proof: points are sampled, Ritz values lie inside the spectrum, and segments miss other
points. A reported violation was observed; an assumption without one was merely not refuted.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi._validate import checked
from proxbi.hypergradient import AID
from proxbi.linear import CG, Direct, LinearSolver
from proxbi.lower import GradientDescent, LowerSolver
from proxbi.newton import Newton
from proxbi.problem import Problem
from proxbi.solvers.prox_bio import ProxBiO
from proxbi.theory.checks import SLACK, audit
from proxbi.theory.constants import Schedule
from proxbi.theory.measure import estimated_constants, measure, spectrum
from proxbi.theory.potential import algorithm_1, record
from proxbi.theory.probes import rays
from proxbi.theory.reference import Exactly, Reference, computed
from proxbi.theory.report import Finding, Report

DENSE = 400
"""Up to this dimension of y the adjoint systems are solved by Cholesky, beyond it by conjugate gradients."""


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

    - `problem`, `x0`, `y0`: as for `minimize`.
    - `constants`: `Constants` or `SharpConstants` if they are known; otherwise they are estimated, and marked so.
    - `steps`: the number of outer steps of Algorithm 1 to check, with the step sizes that follow from the constants.
    - `lower`: the solver for y*; Newton's method by default.
    - `max_T`: the maximal number of lower steps; a problem that needs more is measured, but not run.
    - `seed`: the seed of the random directions.

    Use double precision (`jax.enable_x64`): in single precision few steps exceed rounding.

    **Returns:** a `Report`.

    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2 - 2 * (x * y) ** 2))
    >>> verify(problem, jnp.ones(2), jnp.zeros(2)).violated
    ['1.1: g strongly convex in y']
    """
    _check.positive_int("steps", steps)
    problem, x0, y0, _ = checked(problem, ProxBiO(AID(GradientDescent(1.0, steps=1)), 1.0), x0, y0)
    estimated, keys = constants is None, jax.random.split(jax.random.key(seed), 3)
    here = spectrum(problem, [(x0, y0)], keys[0])
    if not here.finding.holds:
        return Report([here.finding], here.measured, None, estimated, [])

    flat = ravel_pytree(y0)[0]
    linear: LinearSolver = Direct() if flat.size <= DENSE else CG(2000, 1e-12)
    reference = computed(problem, lower or Newton(linear), y0, linear)
    exactly, unsolved = _at(problem, reference, x0, y0)
    if not unsolved <= jnp.sqrt(jnp.finfo(flat.dtype).eps):
        sentence = f"y*(x0) was not found, |g_y| is still {unsolved:.1e} of its start: no minimum, or a kink there."
        return Report([Finding(here.finding.assumption, False, sentence)], here.measured, None, estimated, [])
    around = spectrum(problem, [(x0, y0), (x0, exactly.solution)], keys[0])
    blocks, smooth = measure(problem, linear, exactly, x0, y0, keys[1])
    measured = around.measured | blocks
    findings = [around.finding, _level_sets(problem, reference, x0, keys[2]), *smooth]
    if estimated and not all(finding.holds for finding in (around.finding, *smooth)):
        return Report(findings, measured, None, True, [])

    schedule = constants or estimated_constants(measured)
    if max_T < schedule.T:
        return Report(findings, measured, schedule, estimated, [])
    trace = record(problem, algorithm_1(schedule, linear=linear), reference, x0, y0, steps)
    slack = max(SLACK, 1e3 * float(jnp.finfo(flat.dtype).eps))
    return Report(findings, measured, schedule, estimated, audit(trace, schedule, None, slack=slack))


@eqx.filter_jit
def _at(problem: Problem, reference: Reference, x: PyTree, y: PyTree) -> tuple[Exactly, jax.Array]:
    """The reference values at x, and |g_y| there relative to its value at y."""
    exactly = reference(x)
    start = _tree.norm(problem.grad_lower(x, y)) + jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps
    return exactly, _tree.norm(problem.grad_lower(x, exactly.solution)) / start


def _level_sets(problem: Problem, reference: Reference, x0: PyTree, key: PRNGKeyArray) -> Finding:
    name = "1.3: bounded level sets"
    along = [ray for ray in rays(problem.regularizer, reference, x0, key) if ray.known]
    if any(ray.falls for ray in along):
        return Finding(name, False, "Phi + h falls in proportion to the distance on some ray: it has no lower bound.")
    if not all(ray.grows for ray in along):
        sentence = (
            "Phi + h stops growing on some ray, so iterates may run away (as in hyper-cleaning); a Box on x helps."
        )
        return Finding(name, False, sentence)
    if not along:
        return Finding(name, True, "was not checked: y* was not found far from x0.")
    return Finding(name, True, f"Phi + h grows, or is infinite, far out on {len(along)} rays.")
