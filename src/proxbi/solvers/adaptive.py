r"""Adaptive proximal BiO: a proximal quasi-Newton method with inexact hypergradients, and nothing to set.

One step takes the hypergradient at one point. With d ~ grad Phi(x) and B the BFGS matrix of the pairs (dx, dd) seen,

    x+ = argmin_u  <d, u - x> + <u - x, B (u - x)> / 2 + h(u),                                          (model)
    s+ = -(d + B (x+ - x))   in   dh(x+),          r+ = d+ + s+   in   d(Phi + h)(x+)  up to the error of d+,

so |r+| is the stationarity at x+, for convex and nonconvex h alike. Every point that was looked at, taken or not,
gives a pair: curvature of Phi is learned even from failures, and, as h is not part of B, it stays valid when the
active constraints or the support of x change.

**The model** is solved by a semismooth Newton method on its own prox-gradient map with step t = 1/sigma. As B = sigma
I + Q K Q' has low rank beside sigma I, so has the Newton equation: with P the derivative of the prox at z = x + u -
t (d + B u) and R = x + u - prox_{t h}(z),

    (I - P (I - t B)) e = -R     <=>     e = -R - t P Q K w,     (I + t Q'P Q K) w = -Q'R,     w = Q'e.

No oracle of f or g is called; P costs one product for a separable h and dim(Q) otherwise (Becker, Fadili, Ochs,
"On quasi-Newton forward-backward splitting", 2019).

**Inexactness.** In energy norms (see `inexact.py`) let e_y, e_v be the errors of y and v and c_y, c_v the corrections
made at this point. The corrections together changed the hypergradient by |d+ - d|, so

    E = trust * (e_y / c_y + e_v / c_v) |d+ - d|

estimates the error of d+. Both solves go on until E <= |r+| / 10: the accuracy follows the progress of the outer
iteration, and the larger of the two terms gets the work. Nothing in it has a unit.

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
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from proxbi import _check, _tree, inexact, secant
from proxbi._tree import Scalar
from proxbi.linear import LinearInfo, LinearStatus
from proxbi.problem import Counts, Problem
from proxbi.regularizers import Zero
from proxbi.secant import Model, Secants
from proxbi.solvers._base import Fault, Info, Solver

_HYPERGRADIENT_ACCURACY = 0.1  # E <= this |r|
_SUFFICIENT_DECREASE = 1e-4
_MODEL_ACCURACY, _MODEL_STEPS = 0.1, 10
_LARGEST_MEMORY = 4e7  # numbers kept as pairs, at most


_START, _MOVE, _REFINE = range(3)
"""What the next step is for: the hypergradient at x0; a new point; the same x once more, but more accurately."""
_SOLVED = int(LinearStatus.BUDGET)
"""Statuses up to this one leave something that can be used."""


class Point(NamedTuple):
    """A point and what its hypergradient evaluation found."""

    x: PyTree
    y: PyTree
    v: PyTree
    grad: PyTree
    subgradient: PyTree
    """An element of dh(x): the one the model's prox found."""
    value: Scalar
    """f - <v, g_y>."""
    penalty: Scalar
    """h(x)."""
    gap: Scalar
    """|grad + subgradient|."""
    error: Scalar
    """The estimate E of the error of grad."""
    value_error: Scalar
    accuracy: Scalar
    """The accuracy of the corrections that gave all this."""
    lower_residual: Scalar
    linear: LinearInfo
    unsolved: Bool[Array, ""]
    """Whether Newton's method on the lower problem gave up."""


class AdaptiveState(NamedTuple):
    """The best point, the pairs of both levels and what steers the next step."""

    point: Point
    pairs: Secants
    lower_pairs: Secants
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
    """Steps in a row that rounding made pointless."""
    start: Scalar
    """The objective at x0."""
    first_decrease: Scalar
    first_gap: Scalar
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
        dtype = jnp.result_type(*jax.tree.leaves(y))
        zero, infinite, none = jnp.zeros((), dtype), jnp.full((), jnp.inf, dtype), jnp.int32(0)
        linear = LinearInfo(none, zero, none, none)
        at_rest = (_tree.zeros_like(y), _tree.zeros_like(x), _tree.zeros_like(x))
        point = Point(x, y, *at_rest, zero, zero, infinite, zero, zero, zero, zero, linear, jnp.asarray(False))
        flat = ravel_pytree(x)[0]
        return AdaptiveState(
            point=point,
            pairs=secant.empty(flat, _room(flat, self.memory)),
            lower_pairs=secant.empty(y, _room(y, 2 * self.memory)),
            mode=jnp.int32(_START),
            accuracy=jnp.full((), 1e-3, dtype),
            trust=jnp.ones((), dtype),
            shift=zero,
            relax=jnp.ones((), dtype),
            scale=zero,
            refined=jnp.asarray(False),
            idle=none,
            start=zero,
            first_decrease=zero,
            first_gap=zero,
            longest=zero,
        )

    def step(self, problem: Problem, state: AdaptiveState, key: PRNGKeyArray) -> tuple[AdaptiveState, Info]:
        moves = state.mode == _MOVE
        target = jax.lax.cond(moves, lambda: propose(problem, state), lambda: _stay(state))
        refines = state.mode == _REFINE
        accuracy = jnp.where(refines, 0.01 * jnp.minimum(state.accuracy, state.point.accuracy), state.accuracy)
        point, lower_pairs, counts = self._evaluate(problem, state, target, accuracy)
        after = jax.lax.switch(
            state.mode,
            [
                lambda: _after_start(problem, state, point),
                lambda: _after_move(state, target, point),
                lambda: _after_refine(state, point),
            ],
        )
        after = after._replace(lower_pairs=lower_pairs)
        counts = counts + Counts(prox=jnp.where(state.mode == _START, 1, target.proxes))
        broken = point.linear.status
        kept = after.point
        linear = kept.linear._replace(status=jnp.where(state.mode == _START, broken, int(LinearStatus.OK)))
        info = Info(kept.gap, kept.lower_residual, linear, counts, _fault(state, after, point))
        return after, info

    def recheck(self, state: AdaptiveState) -> AdaptiveState:
        return state._replace(mode=jnp.full_like(state.mode, _REFINE))

    def _evaluate(
        self, problem: Problem, state: AdaptiveState, target: "Target", accuracy: Scalar
    ) -> tuple[Point, Secants, Counts]:
        """The hypergradient at the target, as accurate as its own size asks for."""
        x, before = target.x, state.point

        def too_rough(at: _Rounds) -> Array:
            rough = at.error > _HYPERGRADIENT_ACCURACY * at.gap
            healthy = (at.status <= _SOLVED) & (at.rounds < _MOST_ROUNDS)
            return (at.rounds == 0) | (rough & healthy)

        def refine(at: _Rounds) -> _Rounds:
            factor = jnp.clip(0.3 * _HYPERGRADIENT_ACCURACY * _ratio(at.gap, at.error), 1e-3, 0.3)
            accuracy = jnp.where(at.rounds == 0, 1, factor) * at.accuracy
            lower = inexact.solve_lower(problem, x, at.y, accuracy, at.sizes[0], at.pairs, self.inner_steps)
            adjoint = inexact.solve_adjoint(
                problem, x, lower.y, at.v, accuracy, at.sizes[1], lower.secants, self.inner_steps
            )
            e = adjoint.correction
            sizes = (lower.size, jnp.maximum(at.sizes[1], e.size))
            fractions = _ratio(lower.error, sizes[0]) + _ratio(e.error, sizes[1])
            change = _tree.norm(_tree.subtract(adjoint.grad, before.grad))
            return _Rounds(
                y=lower.y,
                v=adjoint.v,
                pairs=e.secants,
                sizes=sizes,
                errors=(lower.error, e.error),
                accuracy=accuracy,
                grad=adjoint.grad,
                gap=_tree.norm(_tree.axpy(1, target.subgradient, adjoint.grad)),
                error=state.trust * fractions * change,
                gradient=lower.gradient,
                residual=_ratio(_tree.norm(e.residual), adjoint.rhs),
                status=jnp.where(lower.status > _SOLVED, lower.status, e.status),
                unsolved=lower.status == _SOLVED,
                iterations=at.iterations + e.matvecs,
                counts=jax.tree.map(jnp.int32, at.counts + lower.counts + adjoint.counts),
                rounds=at.rounds + 1,
            )

        zero, none = jnp.zeros_like(accuracy), jnp.int32(0)
        at = jax.lax.while_loop(
            too_rough,
            refine,
            _Rounds(
                y=before.y,
                v=before.v,
                pairs=state.lower_pairs,
                sizes=(zero, zero),
                errors=(zero, zero),
                accuracy=accuracy,
                grad=before.grad,
                gap=zero,
                error=zero,
                gradient=before.y,
                residual=zero,
                status=none,
                unsolved=jnp.asarray(False),
                iterations=none,
                counts=jax.tree.map(jnp.int32, Counts()),
                rounds=none,
            ),
        )
        value = problem.value_upper(x, at.y) - _tree.dot(at.v, at.gradient)
        point = Point(
            x=x,
            y=at.y,
            v=at.v,
            grad=at.grad,
            subgradient=target.subgradient,
            value=value.astype(accuracy.dtype),
            penalty=problem.regularizer.value(x).astype(accuracy.dtype),
            gap=at.gap,
            error=at.error,
            value_error=at.errors[0] * at.errors[1],
            accuracy=at.accuracy,
            lower_residual=_tree.norm(at.gradient),
            linear=LinearInfo(at.status, at.residual, at.iterations, at.counts.hvp),
            unsolved=at.unsolved,
        )
        return point, at.pairs, at.counts + Counts(value_upper=1)


class _Rounds(NamedTuple):
    """The hypergradient so far, refined until its error is small beside its size."""

    y: PyTree
    v: PyTree
    pairs: Secants
    sizes: tuple[Scalar, Scalar]
    """The largest corrections of y and v."""
    errors: tuple[Scalar, Scalar]
    accuracy: Scalar
    grad: PyTree
    gap: Scalar
    error: Scalar
    gradient: PyTree
    """g_y at y."""
    residual: Scalar
    status: Int[Array, ""]
    unsolved: Bool[Array, ""]
    iterations: Int[Array, ""]
    counts: Counts
    rounds: Int[Array, ""]


_MOST_ROUNDS = 4


class Target(NamedTuple):
    """Where the hypergradient is to be taken."""

    x: PyTree
    subgradient: PyTree
    sigma: Scalar
    proxes: Int[Array, ""]


def _stay(state: AdaptiveState) -> Target:
    return Target(state.point.x, state.point.subgradient, state.scale, jnp.int32(0))


class _Inner(NamedTuple):
    u: Float[Array, " n"]
    z: Float[Array, " n"]
    image: Float[Array, " n"]
    gap: Scalar
    best: tuple[Float[Array, " n"], Float[Array, " n"], Scalar]
    steps: Int[Array, ""]


def propose(problem: Problem, state: AdaptiveState) -> Target:
    """The minimiser of (model), as far as a few semismooth Newton steps find it."""
    h = problem.regularizer
    x, unravel = ravel_pytree(state.point.x)
    d = ravel_pytree(state.point.grad)[0]
    b = secant.model(state.pairs, state.scale).scaled(state.relax, state.shift)
    t = 1 / b.sigma

    def prox(z: Array) -> Array:
        return ravel_pytree(h.prox(unravel(z), t))[0]

    def look(u: Array, best: tuple[Array, Array, Scalar] | None, steps: Array) -> _Inner:
        z = x + u - t * (d + b @ u)
        image = prox(z)
        gap = jnp.linalg.norm(x + u - image)
        found = (z, image, gap)
        best = found if best is None else _tree.where((gap < best[2]) | (steps == 1), found, best)
        return _Inner(u, z, image, gap, best, steps)

    def newton(at: _Inner) -> _Inner:
        residual = x + at.u - at.image
        pq = _prox_derivative(h, prox, at.z, b.basis)
        small = jnp.eye(b.basis.shape[1], dtype=x.dtype) + t * (b.basis.T @ pq) @ b.inner
        w = jnp.linalg.solve(small, -(b.basis.T @ residual))
        return look(at.u - residual - t * pq @ (b.inner @ w), at.best, at.steps + 1)

    first = look(jnp.zeros_like(x), None, jnp.int32(0))
    known = state.pairs.pushed > 0

    def unsolved(at: _Inner) -> Array:
        return known & (at.gap > _MODEL_ACCURACY * first.gap) & (at.steps < _MODEL_STEPS)

    last = jax.lax.while_loop(unsolved, newton, first)
    z, image, _ = last.best
    proxes = 1 + last.steps * (1 + _derivative_cost(problem, b))
    return Target(unravel(image), unravel((z - image) / t), b.sigma, proxes)


def _prox_derivative(h: PyTree, prox: PyTree, z: Array, basis: Float[Array, "n r"]) -> Float[Array, "n r"]:
    """P Q: the derivative of the prox at z applied to each column."""
    if isinstance(h, Zero):
        return basis
    if h.separable:  # P is diagonal
        return jax.jvp(prox, (z,), (jnp.ones_like(z),))[1][:, None] * basis
    return jax.vmap(lambda q: jax.jvp(prox, (z,), (q,))[1], in_axes=1, out_axes=1)(basis)


def _derivative_cost(problem: Problem, b: Model) -> int:
    h = problem.regularizer
    if isinstance(h, Zero):
        return 0
    return 1 if h.separable else b.basis.shape[1]


def _after_start(problem: Problem, state: AdaptiveState, point: Point) -> AdaptiveState:
    """Without curvature, the objective sets the scale of the first step: a tenth of it is to be gained."""
    size = _tree.norm(point.grad)
    level = jnp.abs(point.value + jnp.where(jnp.isfinite(point.penalty), point.penalty, 0))
    distance = jnp.where(level > 0, 0.1 * level / jnp.where(size > 0, size, 1), 1)
    scale = jnp.where(size > 0, size / distance, 1)
    forward = _tree.axpy(-1 / scale, point.grad, point.x)
    image = problem.regularizer.prox(forward, 1 / scale)
    subgradient = _tree.scale(scale, _tree.subtract(forward, image))  # of h at the image: |d + s| is the prox-gradient
    point = point._replace(subgradient=subgradient, gap=_tree.norm(_tree.axpy(1, subgradient, point.grad)))
    started = state._replace(point=point, mode=jnp.int32(_MOVE), scale=scale, start=point.value + point.penalty)
    return started._replace(accuracy=jnp.full_like(scale, 0.1), first_gap=point.gap)


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

    finite = jnp.isfinite(by_value) & jnp.isfinite(new.gap) & (new.linear.status <= _SOLVED) & ~new.unsolved
    visible = jnp.abs(by_value) > noise
    enough = by_value <= -_SUFFICIENT_DECREASE * jnp.maximum(predicted, 0)
    taken = finite & jnp.where(visible, enough, by_gradients <= rounding)
    at_odds = jnp.abs(by_value - by_gradients) > jnp.maximum(0.5 * jnp.abs(by_value), rounding)
    doubtful = ~taken & finite & at_odds & ~state.refined & (2 * jnp.abs(by_gradients) < jnp.abs(by_value))

    step, change = ravel_pytree(dx)[0], ravel_pytree(dd)[0]
    pairs, learned = secant.push(state.pairs, step, change, 1e-8)
    pairs = _tree.where(finite, pairs, state.pairs)
    sigma = target.sigma
    shrunk = jnp.where(state.shift > 1e-3 * sigma, state.shift / 10, 0)
    grown = jnp.maximum(4 * state.shift, jnp.where(state.pairs.pushed > 0, 0.3, 1.0) * sigma)
    wanted = 0.3 * _HYPERGRADIENT_ACCURACY * _ratio(new.gap, state.trust * _tree.norm(dd))
    accuracy = jnp.where(finite, jnp.clip(wanted, 1e-6, 0.3), state.accuracy)
    pointless = ~visible & (new.gap > 0.9 * old.gap)
    return state._replace(
        point=_tree.where(taken, new, old),
        pairs=pairs,
        mode=jnp.where(doubtful, _REFINE, _MOVE).astype(jnp.int32),
        accuracy=accuracy,
        trust=jnp.where(taken, jnp.maximum(1, 0.7 * state.trust), jnp.where(doubtful, 10, 1) * state.trust),
        shift=jnp.where(taken, shrunk, jnp.where(doubtful, state.shift, grown)),
        relax=jnp.where(learned, 1, jnp.where(taken, 0.3, 1) * state.relax),
        refined=~taken & state.refined,
        idle=jnp.where(pointless, state.idle + 1, 0),
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


def _ratio(a: Scalar, b: Scalar) -> Scalar:
    """a / b, and 0 for b = 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _room(like: PyTree, most: int) -> int:
    size = sum(leaf.size for leaf in jax.tree.leaves(like))
    return int(max(2, min(most, _LARGEST_MEMORY // max(1, 2 * size))))
