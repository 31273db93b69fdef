"""Why a run broke down: a check, on the host, of the point where the solver gave up.

A compiled program reports a symptom: a curvature that is not positive, a gradient that does not fall, a number that is
not finite. Finding the cause takes further products and line probes, which are worth their time once a run has failed:
whether g is concave, flat or kinked at the y where the search for y* ended, and which function is not finite at the
start.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from proxbi import _compile, _tree
from proxbi._place import HERE
from proxbi.hypergradient import Implicit
from proxbi.problem import Problem, ridged
from proxbi.regularizers import Regularizer
from proxbi.result import Result, Status
from proxbi.solvers import OnBatches, Solver
from proxbi.solvers.adaptive import AdaptiveState
from proxbi.theory.lanczos import lower_spectrum
from proxbi.theory.probes import steepness

_PRODUCTS = 30  # with g_yy, for the range of its curvatures
_NEGATIVE = 1e-8  # of the largest curvature: a Ritz value further below 0 is not rounding
_FLAT = 1e-12  # of the largest curvature: a smaller one cannot be distinguished from 0
_COLLAPSED = 1e-6  # of the curvature at y0: if less is left of it, the search went to a region where g is flat
_ACCURACY = 0.1  # of the hypergradient at the end of that search: only its y matters
_FALLEN = 1e-3  # of the stationarity at x0: a run stopped by rounding gets further than that
_UNEXPLAINED = 1e6  # times the fall that slopes explain: no error of a hypergradient is that large
_LINES = "abc"  # along which kinks are searched for
_REACH = 0.1  # of the size of y: how far away from it
_WEAKEST = 1e-9  # a regularizer that keeps x at 0 even with this factor is a constraint
_HALVINGS = 12  # of the range of that factor, in its logarithm: two digits
_LOCAL = 1e-12  # of a step along the slope: so short that a nonconvex h behaves as it does near 0
_LOCAL_MINIMISER = (
    "The lower objective is not convex in y: negative curvature was met. y is a local minimiser, followed as "
    "x changes; from another y0 there may be another one."
)
_BRANCH_ENDS = (
    "y is a local minimiser, followed as x changes: near this x it ends or turns into a saddle, and what lies beyond "
    "is not better."
)


def named(problem: Problem, solver: Solver, result: Result) -> Result:
    """The result with the status and the notes that fit its last point."""
    if (local := _local(result)) is not None:
        result = replace(result, notes=(*result.notes, local))
    if not result.status.failed:
        result = replace(result, notes=(*result.notes, *_emptied(problem, result)))
    if result.status is Status.NONFINITE_START:
        return replace(result, notes=(*result.notes, _not_finite(problem, result.x, result.y)))
    if result.status is Status.CONVERGED and _jumped(result):
        return replace(result, status=Status.FLAT_START)
    if result.status in (Status.NONSMOOTH, Status.PRECISION) and not np.isfinite(result.stationarity):
        result = replace(result, status=Status.LOWER_UNSOLVED)  # the certificate failed: neither name is the reason
    if result.status in (Status.NONSMOOTH, Status.PRECISION) and _spent(result):
        return replace(result, status=Status.PRECISION)
    if isinstance(solver, OnBatches) or not _unclear(result):
        return result
    return replace(result, status=_cause(_damped(problem, solver), result.x, result.y, result.status))


def _local(result: Result) -> str | None:
    """The note for a y that is a minimiser found through negative curvature."""
    state = result.state.state
    if not isinstance(state, AdaptiveState) or result.status is Status.LOWER_UNSOLVED or not result.steps:
        return None
    if result.status is Status.NEGATIVE_CURVATURE:
        return _BRANCH_ENDS if result.improved else None
    return _LOCAL_MINIMISER if bool(jnp.any(state.at.found.saddles > 0)) else None


def _unclear(result: Result) -> bool:
    """Whether the lower level may be to blame. After a large fall of the stationarity, rounding is."""
    if result.status is Status.PRECISION:
        return result.stationarity > _FALLEN * result.history[0]["stationarity"]
    return result.status in (Status.NEGATIVE_CURVATURE, Status.LOWER_UNSOLVED, Status.NONSMOOTH)


def _spent(result: Result) -> bool:
    """Whether the slope, over a distance as long as x or as the path from x0, is less than half of the digits of the
    objective: a kink or a bad lower level shows at larger slopes. Runs that started at a solution end like this.
    """
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(result.x))).eps)
    state = result.state.state
    come = _tree.norm(_tree.subtract(result.x, state.x0)) if isinstance(state, AdaptiveState) else 0.0
    return float(result.stationarity * jnp.maximum(_tree.norm(result.x), come)) <= eps**0.5 * abs(result.objective)


def _jumped(result: Result) -> bool:
    """Whether the objective fell by far more than the slopes of all accepted points add up to over the distance from
    x0: from one plateau to another, over everything between. Within the first radius of x0 there is no jump: a run that
    starts at a solution ends there, and the fall is rounding.
    """
    state = result.state.state
    if not isinstance(state, AdaptiveState) or not result.history:
        return False
    distance = float(_tree.norm(_tree.subtract(result.x, state.x0)))
    fall = result.history[0]["objective"] - result.objective
    return distance > float(state.watch.radius) and fall > _UNEXPLAINED * float(state.watch.steepest) * distance


def _emptied(problem: Problem, result: Result) -> Iterator[str]:
    """The note if all of x is 0 and would not be with a weaker regularizer: its strength may be meant for an objective
    of another scale, such as a sum in place of a mean.
    """
    state = result.state.state
    s = state.at.subgradient if isinstance(state, AdaptiveState) else getattr(state, "subgradient", None)
    if s is None or problem.place is not HERE or any(bool(jnp.any(leaf)) for leaf in jax.tree.leaves(result.x)):
        return
    size = float(_tree.norm(s))
    if not size or not bool(_released(problem.regularizer, s, _LOCAL / size, _WEAKEST)):
        return
    strong, weak = 1.0, _WEAKEST
    for _ in range(_HALVINGS):
        middle = (strong * weak) ** 0.5
        if bool(_released(problem.regularizer, s, _LOCAL / size, middle)):
            weak = middle
        else:
            strong = middle
    yield (
        f"All of x is 0, as the regularizer is stronger than the slope of f(x, y*(x)) there: some of x differs from 0 "
        f"from about {weak:.2g} * regularizer on downwards."
    )


@_compile.jit
def _released(h: Regularizer, s: PyTree, step: float, factor: float) -> Array:
    """Whether factor * h would let some of x leave 0, where h holds it against the slope s. For a nonconvex h, the
    short step shows whether 0 is a local minimiser.
    """
    moved = (factor * h).prox(_tree.scale(step, s), step)
    return jnp.any(jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(moved)]))


def _damped(problem: Problem, solver: Solver) -> Problem:
    """The problem that the solver solves."""
    return ridged(problem, getattr(getattr(solver, "hypergradient", None), "damping", None))


def _cause(problem: Problem, x: PyTree, y: PyTree, status: Status) -> Status:
    start = _Curvatures.at(problem, x, y)
    if status is Status.NEGATIVE_CURVATURE and start.negative:
        return status
    unsolved = status in (Status.NEGATIVE_CURVATURE, Status.LOWER_UNSOLVED)
    y = _searched(problem, x, y) if unsolved else y
    end = _Curvatures.at(problem, x, y)
    if not np.isfinite(end).all():
        return status
    # With a regularizer g may be flat across the active face: there only the curvature that CG met on the face is
    # evidence.
    known = problem.lower_regularizer is None or status is Status.NEGATIVE_CURVATURE
    # If hardly any curvature is left, rounding looks like a kink, or like negative curvature: so this comes first.
    if known and start.largest > 0 and max(abs(value) for value in end) <= _COLLAPSED * start.largest:
        return Status.NOT_STRONGLY_CONVEX
    if _kinked(Partial(_gradient, problem, x), y):  # first: next to a kink curvature may be negative
        return Status.LOWER_NONSMOOTH
    if end.negative:
        return Status.NEGATIVE_CURVATURE
    if status is Status.PRECISION and _kinked(Partial(_upper_gradient, problem), (x, y)):
        return Status.NONSMOOTH
    return Status.NOT_STRONGLY_CONVEX if known and end.flat else status


@_compile.jit
def _searched(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    """Where the search for y* from y ends."""
    solve = Implicit()
    return solve(problem, x, solve.init(problem, x, y), _tree.zeros_like(x), jnp.asarray(_ACCURACY)).y


class _Curvatures(NamedTuple):
    """The range of curvatures of g in y, as far as measured."""

    smallest: float
    largest: float

    @classmethod
    def at(cls, problem: Problem, x: PyTree, y: PyTree) -> "_Curvatures":
        ritz = lower_spectrum(problem, x, y, _PRODUCTS)
        return cls(float(ritz.smallest), float(ritz.largest))

    @property
    def negative(self) -> bool:
        return self.smallest < -_NEGATIVE * max(abs(self.largest), abs(self.smallest))

    @property
    def flat(self) -> bool:
        return self.smallest <= _FLAT * self.largest


def _kinked(gradient: Partial, at: PyTree) -> bool:
    """Whether a gradient jumps on a line through a point."""
    flat, unravel = ravel_pytree(at)
    draw = np.random.default_rng(0)
    size = _REACH * jnp.where(flat == 0, 1, jnp.abs(flat))
    lines = {k: unravel(size * jnp.asarray(draw.normal(size=flat.shape), flat.dtype)) for k in _LINES}
    seen = steepness({"gradient": gradient}, at, lines)
    return any(line.finite and not line.bounded for line in seen.values())


def _gradient(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    return problem.grad_lower(x, y)


def _upper_gradient(problem: Problem, at: tuple[PyTree, PyTree]) -> PyTree:
    return problem.grad_upper(*at)


def _not_finite(problem: Problem, x: PyTree, y: PyTree) -> str:
    """Which of the functions is not finite at (x0, y0)."""
    found = {
        "upper(x0, y0)": problem.value_upper(x, y),
        "lower(x0, y0)": problem.value_lower(x, y),
        "problem.grad_upper(x0, y0)": problem.grad_upper(x, y),
        "problem.grad_lower(x0, y0)": problem.grad_lower(x, y),
    }
    broken = [name for name, value in found.items() if not bool(_tree.all_finite(value))]
    if not broken:
        return "All are finite at x0 and y0, but not where the search for the lower solution leads from there."
    return f"Not finite: {', '.join(broken)}."
