r"""Adaptive proximal BiO: a proximal quasi-Newton method with inexact hypergradients, and nothing to set.

One step takes the hypergradient at one point. With d ~ grad Phi(x) and B the BFGS matrix of the pairs (dx, dd) seen,

    x+ = argmin_u  <d, u - x> + <u - x, B (u - x)> / 2 + h(u),                                          (model)
    s+ = -(d + B (x+ - x))   in   dh(x+),          r+ = d+ + s+   in   d(Phi + h)(x+)  up to the error of d+,

so |r+| is the stationarity at x+, for convex and nonconvex h alike. Every point that was looked at, taken or not,
gives a pair: curvature of Phi is learned even from failures, and, as h is not part of B, it stays valid when the
active constraints or the support of x change.

The model is solved in `_proximal_newton.py`, by its prox alone.

The hypergradient is taken in `_evaluate.py`, as accurately as its own size asks for.

**Descent** is tested on the adjoint-corrected value f - <v, g_y>, whose error is e_y e_v and not e_y. Where rounding
or that error hides the difference, the trapezoidal rule <d + d+, dx> / 2 decides, which has no cancellation. If both
disagree and the step is refused, the hypergradient at x was worse than thought: it is taken again, a hundred times
more accurately, and `trust` grows; only then does the step shrink (by a multiple of I added to B).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from proxbi import _check, _tree, inexact, secant
from proxbi._tree import Scalar
from proxbi.linear import LinearStatus
from proxbi.problem import Counts, Problem
from proxbi.secant import Inverse, Secants
from proxbi.solvers._base import Fault, Info, Solver
from proxbi.solvers._evaluate import ACCURACY, SOLVED, Point, evaluate, ratio, start
from proxbi.solvers._proximal_newton import Target, propose

_SUFFICIENT_DECREASE = 1e-4
_LARGEST_MEMORY = 4e7  # numbers kept as pairs, at most


_START, _MOVE, _REFINE = range(3)
"""What the next step is for: the hypergradient at x0; a new point; the same x once more, but more accurately."""


class AdaptiveState(NamedTuple):
    """The best point, the pairs of both levels and what steers the next step."""

    point: Point
    pairs: Secants
    conditioner: Inverse | None
    """Of lower and adjoint solves."""
    mode: Int[Array, ""]
    accuracy: Scalar
    trust: Scalar
    shift: Scalar
    """The multiple of I added to B after refused steps."""
    relax: Scalar
    """The factor on B where the curvature met was not positive."""
    scale: Scalar
    """sigma before there are pairs."""
    refined: Bool[Array, ""]
    idle: Int[Array, ""]
    """Steps without progress, in which rounding hid the change of the objective."""
    start: Scalar
    """The objective at x0."""
    first_decrease: Scalar
    first_gap: Scalar
    best_gap: Scalar
    longest: Scalar
    """The longest step so far."""

    @property
    def x(self) -> PyTree:
        return self.point.x

    @property
    def y(self) -> PyTree:
        return self.point.y

    @property
    def v(self) -> PyTree:
        return self.point.v

    @property
    def grad(self) -> PyTree:
        return self.point.grad

    @property
    def subgradient(self) -> PyTree:
        return self.point.subgradient


class AdaptiveProxBiO(Solver):
    r"""Proximal quasi-Newton on inexact hypergradients: no step size, no number of inner steps, nothing to tune.

    **Arguments:**

    - `memory`: how many pairs the models of both levels keep, at most; less where x or y is very large.
    - `inner_steps`: the most CG steps of one linear solve, a guard against lower levels that cannot be solved.

    The certificate of a step is that of the x it leaves. See the top of this file for the method.

    >>> from proxbi import L1, minimize
    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(1.0))
    >>> result = minimize(problem, x0=jnp.zeros(2), y0=jnp.zeros(2))
    >>> print(result.x.round(3), result.status.name)
    [1.5 1.5] CONVERGED
    """

    memory: int = eqx.field(static=True, default=20)
    inner_steps: int = eqx.field(static=True, default=10_000)
    certifies_end = True

    def __check_init__(self) -> None:
        _check.positive_int("memory", self.memory)
        _check.positive_int("inner_steps", self.inner_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> AdaptiveState:
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
        flat = ravel_pytree(x)[0]
        return AdaptiveState(
            point=start(x, y),
            pairs=secant.empty(flat, _room(flat, self.memory)),
            conditioner=inexact.blank(problem, y, _room(y, self._lower_memory(y))),
            mode=jnp.int32(_START),
            accuracy=zero + 1e-3,
            trust=zero + 1,
            shift=zero,
            relax=zero + 1,
            scale=zero,
            refined=jnp.asarray(False),
            idle=jnp.int32(0),
            start=zero,
            first_decrease=zero,
            first_gap=zero,
            best_gap=zero,
            longest=zero,
        )

    def _lower_memory(self, y: PyTree) -> int:
        """A lower solve leaves several pairs, an outer step one; and the larger y, the more of them are of use."""
        return max(2 * self.memory, min(4 * self.memory, _size(y) // 8))

    def step(self, problem: Problem, state: AdaptiveState, key: PRNGKeyArray) -> tuple[AdaptiveState, Info]:
        moves = state.mode == _MOVE
        target = jax.lax.cond(moves, lambda: _ahead(problem, state), lambda: _stay(state))
        refines = state.mode == _REFINE
        accuracy = jnp.where(refines, 0.01 * jnp.minimum(state.accuracy, state.point.accuracy), state.accuracy)
        point, conditioner, counts = evaluate(
            problem, state.point, target, accuracy, state.trust, state.conditioner, self.inner_steps
        )
        after = jax.lax.switch(
            state.mode,
            [
                lambda: _after_start(problem, state, point),
                lambda: _after_move(state, target, point),
                lambda: _after_refine(state, point),
            ],
        )
        after = after._replace(conditioner=conditioner)
        counts = counts + Counts(prox=jnp.where(state.mode == _START, 1, target.proxes))
        broken = point.linear.status
        kept = after.point
        linear = kept.linear._replace(status=jnp.where(state.mode == _START, broken, int(LinearStatus.OK)))
        info = Info(kept.gap, kept.lower_residual, linear, counts, _fault(state, after, point))
        return after, info

    def recheck(self, state: AdaptiveState) -> AdaptiveState:
        return state._replace(mode=jnp.full_like(state.mode, _REFINE))


def _ahead(problem: Problem, state: AdaptiveState) -> Target:
    b = secant.model(state.pairs, state.scale).scaled(state.relax, state.shift)
    return propose(problem.regularizer, state.point.x, state.point.grad, b, state.pairs.pushed > 0)


def _stay(state: AdaptiveState) -> Target:
    return Target(state.point.x, state.point.subgradient, state.scale, jnp.int32(0))


def _after_start(problem: Problem, state: AdaptiveState, point: Point) -> AdaptiveState:
    """Without curvature, the objective sets the scale of the first step: half of it is to be gained."""
    size = _tree.norm(point.grad)
    level = jnp.abs(point.value + jnp.where(jnp.isfinite(point.penalty), point.penalty, 0))
    distance = jnp.where(level > 0, 0.5 * level / jnp.where(size > 0, size, 1), 1)
    scale = jnp.where(size > 0, size / distance, 1)
    forward = _tree.axpy(-1 / scale, point.grad, point.x)
    image = problem.regularizer.prox(forward, 1 / scale)
    subgradient = _tree.scale(scale, _tree.subtract(forward, image))  # of h at the image: |d + s| is the prox-gradient
    point = point._replace(subgradient=subgradient, gap=_tree.norm(_tree.axpy(1, subgradient, point.grad)))
    started = state._replace(point=point, mode=jnp.int32(_MOVE), scale=scale, start=point.value + point.penalty)
    return started._replace(accuracy=jnp.full_like(scale, 0.1), first_gap=point.gap, best_gap=point.gap)


def _after_refine(state: AdaptiveState, point: Point) -> AdaptiveState:
    better = jnp.isfinite(point.value) & jnp.isfinite(point.gap)
    return state._replace(
        point=_tree.where(better, point, state.point), mode=jnp.int32(_MOVE), refined=jnp.asarray(True)
    )


def _after_move(state: AdaptiveState, target: Target, new: Point) -> AdaptiveState:
    old = state.point
    dx, dd = _tree.subtract(new.x, old.x), _tree.subtract(new.grad, old.grad)
    penalty = new.penalty - old.penalty
    predicted = -(_tree.dot(old.grad, dx) + penalty)
    by_value = (new.value - old.value) + penalty
    by_gradients = 0.5 * (_tree.dot(old.grad, dx) + _tree.dot(new.grad, dx)) + penalty
    eps = float(jnp.finfo(new.value.dtype).eps)
    size = jnp.abs(new.value) + jnp.abs(old.value) + jnp.abs(new.penalty) + jnp.abs(old.penalty)
    rounding = 10 * eps * size
    noise = 10 * (rounding + new.value_error + old.value_error)

    finite = jnp.isfinite(by_value) & jnp.isfinite(new.gap) & (new.linear.status <= SOLVED) & ~new.unsolved
    visible = jnp.abs(by_value) > noise
    enough = by_value <= -_SUFFICIENT_DECREASE * jnp.maximum(predicted, 0)
    # A rise within an error larger than the gain that was hoped for: nothing is known, so nothing is risked.
    blind = (by_value > rounding) & (new.value_error + old.value_error > jnp.maximum(predicted, rounding))
    taken = finite & jnp.where(visible, enough, (by_gradients <= rounding) & ~blind)
    at_odds = jnp.abs(by_value - by_gradients) > jnp.maximum(0.5 * jnp.abs(by_value), rounding)
    misled = at_odds & (2 * jnp.abs(by_gradients) < jnp.abs(by_value))
    doubtful = ~taken & finite & (misled | blind) & ~state.refined

    step, change = ravel_pytree(dx)[0], ravel_pytree(dd)[0]
    pairs, learned = secant.push(state.pairs, step, change, 1e-8)
    pairs = _tree.where(finite, pairs, state.pairs)
    sigma = target.sigma
    shrunk = jnp.where(state.shift > 1e-3 * sigma, state.shift / 10, 0)
    grown = jnp.maximum(4 * state.shift, jnp.where(state.pairs.pushed > 0, 0.3, 1.0) * sigma)
    wanted = 0.3 * ACCURACY * ratio(new.gap, state.trust * _tree.norm(dd))
    accuracy = jnp.where(finite, jnp.clip(wanted, 1e-6, 0.3), state.accuracy)
    progress = (taken & visible) | (new.gap <= 0.9 * state.best_gap)
    return state._replace(
        point=_tree.where(taken, new, old),
        pairs=pairs,
        mode=jnp.where(doubtful, _REFINE, _MOVE).astype(jnp.int32),
        accuracy=accuracy,
        trust=jnp.where(taken, jnp.maximum(1, 0.7 * state.trust), jnp.where(doubtful, 10, 1) * state.trust),
        shift=jnp.where(taken, shrunk, jnp.where(doubtful, state.shift, grown)),
        relax=jnp.where(learned, 1, jnp.where(taken, 0.3, 1) * state.relax),
        refined=~taken & state.refined,
        idle=jnp.where(progress, 0, state.idle + (~visible).astype(jnp.int32)),
        best_gap=jnp.where(finite, jnp.minimum(state.best_gap, new.gap), state.best_gap),
        first_decrease=jnp.where(state.first_decrease > 0, state.first_decrease, jnp.maximum(predicted, 0)),
        longest=jnp.maximum(state.longest, _tree.norm(dx)),
    )


def _fault(before: AdaptiveState, after: AdaptiveState, point: Point) -> Int[Array, ""]:
    """Why the run cannot go on, if it cannot."""
    starting = before.mode == _START
    objective = after.point.value + after.point.penalty
    gained = after.start - objective
    level = jnp.maximum(jnp.abs(after.start), after.first_decrease)
    # At a kink the curvature met grows without bound and the steps shrink to nothing, but the gradient does not fall.
    tiny = float(jnp.finfo(objective.dtype).eps) ** 0.75
    step = _tree.norm(_tree.subtract(point.x, before.point.x))
    stuck = (step <= tiny * before.longest) & (after.point.gap > 0.1 * after.first_gap)
    ends = {
        Fault.INFEASIBLE_START: starting & ~jnp.isfinite(point.penalty),
        Fault.LOWER_UNSOLVED: starting & point.unsolved & jnp.isfinite(point.gap),
        Fault.UNBOUNDED: ~starting & (gained > 1e10 * level),
        Fault.NONSMOOTH: (before.mode == _MOVE) & stuck,
        Fault.PRECISION: after.idle >= 10,
    }
    return jnp.select(list(ends.values()), list(ends), Fault.NONE).astype(jnp.int32)


def _room(like: PyTree, most: int) -> int:
    return int(max(2, min(most, _LARGEST_MEMORY // max(1, 2 * _size(like)))))


def _size(tree: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
