r"""Adaptive proximal BiO: a proximal quasi-Newton method with inexact hypergradients, and nothing to set.

A step evaluates the hypergradient at one trial point, decides whether to accept it (`_decide.py`), and proposes the
next (`_proximal_newton.py`):

    x+ = argmin_u  <d, u - x> + <u - x, (B + |d + s| / R) (u - x)> / 2 + h(u),                              (model)
    s+ = -(d + (B + |d + s| / R) (x+ - x))   in   dh(x+),

with d ~ grad Phi(x), s in dh(x), and B the BFGS matrix of the pairs (dx, dd) seen. So |d+ + s+| is the stationarity at
x+, for convex and nonconvex h alike. Every point evaluated, accepted or not, gives a pair: curvature of Phi is learned
even from failures, and, as h is not part of B, it stays valid when the active constraints or the support of x change.

**The radius R** bounds the step: for convex h, <u - x, d + s> <= -<u - x, (B + |d + s| / R)(u - x)> implies |u - x| <=
R. Near a solution |d + s| / R falls with d + s, so that convergence stays superlinear. R is ten times the longest step
accepted since the last rejection, and half the length of a rejected step.

**Convergence.** rtol refers to the larger of two ratios that have no units and do not depend on constants added to f or
on the slope at x0: |d + s| against |B (x - x0)|, the gradient that the present curvature builds up over the path from
x0; and the decrease that the model still promises against <x - x0, B (x - x0)> / 2, the same for values. B may be far
too large along entries that have hardly moved, and stiff entries build up a gradient that hides all others. So the
second scale is at most the decrease of the objective, and the first at most a hundred times its part along x - x0: over
a distance like that from x0, the remaining slope gains less than 1e-4 of the decrease so far (rtol = 1e-6). From an x0
that is nearly a solution there is no path to compare with. Then |d + s| is compared with a hundredth of |f_x| + |g_xy
v| + |s|, the terms that cancel in it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from proxbi import _check, _lbfgs, _tree
from proxbi._lbfgs import Model, Pairs
from proxbi._tree import Scalar
from proxbi.certificate import Bounds, Certificate, Known, of_evaluation
from proxbi.hypergradient import ControlledHypergradient, Evaluation, Implicit, Outcome, Penalty
from proxbi.hypergradient._controlled import ratio
from proxbi.linear import LinearInfo, LinearStatus
from proxbi.problem import Counts, Problem
from proxbi.solvers._base import Fault, Info, Solver
from proxbi.solvers._decide import BOTTOMLESS, ROUNDING, UNBOUNDED, Move, Steering, Watch, decide
from proxbi.solvers._proximal_newton import Target, propose

_ACCURACY = 0.1  # the error of d, relative to |d + s|: ten times more accuracy changes no step by much
_TOLERABLE = 0.5  # the error above which a point is not accepted
_REFINED = 0.01  # of these, where a point is evaluated again
_FIRST_STEP = 0.3  # of the length of x0: the first step; tuned on the suite, 0.3 to 1 alike
_FIRST_GAIN = 0.1  # the part of the objective that a first step aims at where x0 = 0 gives no length
_LEAST_COSINE = 1e-8  # between a step and the change of the gradient: below, curvature is rounding
_MOST_IDLE = 20  # trials in which rounding hid all progress
_KINK = 0.75  # power of the rounding unit: a rejected step so short, relative to the longest, meets a kink
_CANCELS = 20  # units of rounding that may be left of terms that cancel, and of their error
_STEEP = 0.1  # of the steepest slope: above it, the slope has not fallen
_OF_TERMS = 0.01  # of terms that cancel: the rest must be below rtol times this part of them
_ALONG = 1e2  # by how much |B (x - x0)| may exceed its part along x - x0: stiff entries hide the others
_MEMORY, _LEAST_MEMORY = 100, 20  # pairs: as many as x has entries, and between these


class Point(NamedTuple):
    """A point, its hypergradient and its subgradient."""

    x: PyTree
    subgradient: PyTree
    """An element s of dh(x): the one that the model's prox found. At x0 it is one at the first trial point."""
    penalty: Scalar
    """h(x)."""
    gap: Scalar
    """|d + s|."""
    found: Evaluation


class AdaptiveState(NamedTuple):
    """The best point, the next trial, curvature, and what steers and watches the run."""

    at: Point
    trial: Target
    pairs: Pairs
    steering: Steering
    watch: Watch
    x0: PyTree
    started: Bool[Array, ""]
    moved: Bool[Array, ""]
    """Whether a trial was accepted, so that the subgradient belongs to x."""
    yardstick: Scalar
    """|B (x - x0)|: what rtol compares |d + s| with."""
    promise: Scalar
    """The decrease that the model still promises, relative to <x - x0, B (x - x0)> / 2."""

    @property
    def x(self) -> PyTree:
        return self.at.x

    @property
    def y(self) -> PyTree:
        return self.at.found.y

    @property
    def subgradient(self) -> PyTree:
        return self.at.subgradient


class AdaptiveProxBiO(Solver):
    r"""Proximal quasi-Newton on inexact hypergradients: no step size, no number of inner steps, nothing to tune.

    $$x_{k+1} = \arg\min_u\; \langle d_k, u - x_k\rangle + \tfrac12\langle u - x_k,\, (B_k + \tfrac{|d_k + s_k|}{R_k} I)
    (u - x_k)\rangle + h(u)$$

    with $d_k \approx \nabla\Phi(x_k)$ as accurate as its size requires ($|d_k - \nabla\Phi(x_k)| \le 0.1\,|d_k + s_k|$,
    as estimated), $s_k \in \partial h(x_k)$ from the last prox, $B_k$ the BFGS matrix of the pairs $(\Delta x, \Delta
    d)$, and a radius $R_k$ that grows with accepted steps and shrinks with rejected ones. A step is accepted only if,
    given the error estimates, $\Phi + h$ decreases: by values, or by slopes if rounding hides values. See
    `docs/how-it-works.md`.

    **Arguments:**

    - `hypergradient`: `Implicit()` (Newton and CG), `Penalty()` (gradients only), or one of your own.
    - `memory`: the maximal number of pairs that the model of Phi keeps; fewer if x is very large.

    References: Z. Chen, B. Kailkhura, Y. Zhou, "An accelerated proximal algorithm for regularized nonconvex and
    nonsmooth bi-level optimization", 2023 (the prox on the upper level); J. Lee, Y. Sun, M. Saunders, "Proximal
    Newton-type methods for minimizing composite functions", 2014; S. Becker, J. Fadili, P. Ochs, "On quasi-Newton
    forward-backward splitting", 2019 (the step).

    >>> from proxbi import L1, minimize
    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(1.0))
    >>> result = minimize(problem, jnp.zeros(2), jnp.zeros(2), AdaptiveProxBiO(), tol=1e-4)
    >>> print(result.x.round(3), result.status.name)
    [1.5 1.5] CONVERGED
    """

    hypergradient: ControlledHypergradient = eqx.field(default_factory=Implicit)
    memory: int = eqx.field(static=True, default=_MEMORY)

    def __check_init__(self) -> None:
        if not isinstance(self.hypergradient, ControlledHypergradient):
            given = type(self.hypergradient).__name__
            raise TypeError(f"hypergradient must be a ControlledHypergradient such as Implicit(), got {given}.")
        _check.positive_int("memory", self.memory)

    @property
    def looks_ahead(self) -> bool:
        return True

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> AdaptiveState:
        known = self.hypergradient.init(problem, x, y)
        zero, none, no = jnp.zeros_like(known.value), _tree.zeros_like(x), jnp.asarray(False)
        flat = ravel_pytree(x)[0]
        return AdaptiveState(
            at=Point(x, none, zero, zero, known),
            trial=Target(x, none, jnp.int32(0)),
            pairs=_lbfgs.empty(flat, min(self.memory, max(_LEAST_MEMORY, flat.size))),
            steering=Steering(zero, zero + jnp.inf, zero + 1, zero + 1, no, no),
            watch=Watch(zero, zero, zero + jnp.inf, zero, zero, jnp.int32(0)),
            x0=x,
            started=no,
            moved=no,
            yardstick=zero,
            promise=zero,
        )

    def step(self, problem: Problem, state: AdaptiveState, key: PRNGKeyArray) -> tuple[AdaptiveState, Info]:
        steering = state.steering
        accuracy = _ACCURACY / steering.trust * jnp.where(steering.refine, _REFINED, 1)
        found = self.hypergradient(problem, state.trial.x, state.at.found, state.trial.subgradient, accuracy)
        new = Point(
            state.trial.x,
            state.trial.subgradient,
            problem.regularizer.value(state.trial.x).astype(found.value.dtype),
            _tree.norm(_tree.axpy(1, state.trial.subgradient, found.grad)),
            found._replace(error=steering.trust * found.error),
        )
        after, taken = _after(state, new, problem.regularizer.convex)
        after, proxes = _proposed(problem, state, after)
        stationarity = after.at.gap + after.at.found.error + after.at.found.bias
        info = Info(
            stationarity=stationarity,
            relative=_relative(after, stationarity),
            lower_residual=after.at.found.lower_residual,
            linear=_linear(after.at.found),
            counts=found.counts + Counts(prox=proxes),
            fault=_fault(state, after, new, taken),
        )
        return after, info

    def recheck(self, state: AdaptiveState) -> AdaptiveState:
        yes: Any = np.asarray(True)  # NumPy's numbers need no program
        trial = Target(state.at.x, state.at.subgradient, state.trial.proxes)
        return state._replace(trial=trial, steering=state.steering._replace(refine=yes))

    def certificate(
        self, problem: Problem, before: AdaptiveState, after: AdaptiveState, info: Info, bounds: Bounds | None = None
    ) -> Certificate:
        at, length = after.at, jnp.maximum(_tree.norm(after.x), after.watch.radius)
        curvature = _lbfgs.steepness(after.pairs)
        known = Known(at.x, at.subgradient, after.moved, before.started, length, curvature * _tree.norm(at.x))
        found = of_evaluation(problem, known, before.at.found, at.found, bounds)
        # If only the rounding of terms that cancel is left, x is stationary, however short the path was.
        rounding = _CANCELS * float(jnp.finfo(at.gap.dtype).eps) * _terms(at)
        relative = jnp.where(found.stationarity <= rounding, 0, _relative(after, found.stationarity))
        return found._replace(relative=relative, counts=found.counts + info.counts)


def _after(state: AdaptiveState, new: Point, convex: bool) -> tuple[AdaptiveState, Bool[Array, ""]]:
    """The state after the evaluation of the trial point, and whether that was accepted; `convex`: whether h is
    convex."""
    old, stays = state.at, ~state.started | state.steering.refine
    dx, dd = _tree.subtract(new.x, old.x), _tree.subtract(new.found.grad, old.found.grad)
    move, length = _move(old, new, dx, convex, state.steering.refined), _tree.norm(dx)
    decision = decide(move)
    change, curvature = _tree.norm(dd), _tree.dot(dx, dd)
    clear = (change > new.found.error + old.found.error) & (curvature > _LEAST_COSINE * length * change)
    learned = clear & move.usable & ~stays
    pairs = _lbfgs.push(state.pairs, ravel_pytree(dx)[0], ravel_pytree(dd)[0], curvature, learned)
    finite = jnp.isfinite(new.found.value) & jnp.isfinite(new.gap) & (new.found.outcome <= Outcome.ROUGH)
    same = stays | (length == 0)  # the model may lead back to x: only the subgradient is new, and better
    taken = jnp.where(same, finite, decision.taken)
    steering = _tree.where(same, state.steering, state.steering.after(decision, length, learned))
    refined = steering.refined | state.steering.refine
    carry = _tree.where(decision.mild, new.found.carry, old.found.carry)
    # A refinement that failed shows that x is not solved: a certificate must not rest on the estimate from before.
    outcome = jnp.where(state.started & stays, new.found.outcome, old.found.outcome)
    kept = old._replace(found=old.found._replace(carry=carry, outcome=outcome))
    after = state._replace(
        at=_tree.where(taken, new, kept),
        pairs=pairs,
        steering=steering._replace(refine=steering.refine & ~stays, refined=refined),
        watch=_tree.where(stays, state.watch, state.watch.after(decision, new.gap, length)),
        started=jnp.asarray(True),
        moved=state.moved | (taken & ~stays),
    )
    return after, taken


def _move(old: Point, new: Point, dx: PyTree, convex: bool, sure: Bool[Array, ""]) -> Move:
    there, back = _tree.dot(old.found.grad, dx), _tree.dot(new.found.grad, dx)
    penalty = rise = new.penalty - old.penalty
    if convex:  # if rounding of h hides the slope, <s+, x+ - x> bounds the change of h, and is not a difference
        hidden = ROUNDING * float(jnp.finfo(rise.dtype).eps) * (jnp.abs(new.penalty) + jnp.abs(old.penalty))
        least = jnp.minimum(rise, _tree.dot(new.subgradient, dx))
        rise = jnp.where(jnp.abs(there + rise) < hidden, least, rise)
    sizes = [jnp.abs(a) for a in (new.found.value, old.found.value, new.penalty, old.penalty)]
    errors = new.found.error + old.found.error
    exact = new.found.error <= _TOLERABLE * jnp.maximum(new.gap, old.gap)
    usable = exact & (new.found.outcome <= Outcome.ROUGH) & jnp.isfinite(new.found.value) & jnp.isfinite(new.gap)
    return Move(
        predicted=-(there + rise),
        by_value=(new.found.value - old.found.value) + penalty,
        by_slopes=0.5 * (there + back) + rise,
        size=jnp.sum(jnp.stack(sizes)),
        value_error=new.found.value_error + old.found.value_error,
        slope_error=0.5 * _tree.norm(dx) * errors,
        usable=usable & jnp.isfinite(new.penalty),
        sure=sure,
    )


def _proposed(problem: Problem, before: AdaptiveState, state: AdaptiveState) -> tuple[AdaptiveState, Int[Array, ""]]:
    """The state with its next trial, and the number of proxes used."""
    at, first, model = state.at, ~before.started, _lbfgs.model(state.pairs, problem.place.orthonormal)
    size = jnp.where(first, _tree.norm(at.found.grad), at.gap)
    radius = jnp.where(first, _first_radius(at, size), state.steering.radius)
    b = model.scaled(state.steering.relax, ratio(size, radius))
    reach = jnp.maximum(radius, state.steering.reach)
    ahead = propose(problem.regularizer, at.x, at.found.grad, b, state.pairs.pushed > 0, reach)
    again = Target(at.x, at.subgradient, jnp.int32(0))
    # Until a trial is accepted, the subgradient is one at the first trial: |d + s| is the size of the prox-gradient
    # step.
    at = _tree.where(first, at._replace(subgradient=ahead.subgradient), at)
    at = at._replace(gap=_tree.norm(_tree.axpy(1, at.subgradient, at.found.grad)))
    seen = jnp.maximum(state.watch.steepest, at.gap)
    watch = Watch(radius, at.found.value + at.penalty, at.gap, seen, radius, state.watch.idle)
    state = state._replace(
        at=at,
        trial=_tree.where(state.steering.refine, again, ahead),
        steering=state.steering._replace(radius=radius),
        watch=_tree.where(first, watch, state.watch),
    )
    return _measured(state, model, ahead), ahead.proxes


def _measured(state: AdaptiveState, model: Model, ahead: Target) -> AdaptiveState:
    """The state with the two numbers that rtol refers to."""
    at = state.at
    way = ravel_pytree(_tree.subtract(at.x, state.x0))[0]
    built = model @ way
    residual = _tree.axpy(1, at.subgradient, at.found.grad)
    promised = jnp.abs(_tree.dot(residual, _tree.subtract(ahead.x, at.x)))
    # Rejected trials may have met far larger curvature than there is on the path: no more is built up than the steepest
    # point on it shows.
    length = jnp.linalg.norm(way)
    yardstick = jnp.minimum(jnp.linalg.norm(built), state.watch.steepest)
    # Nor is the gain more than the decrease of the objective: B may be far too large along entries that hardly moved.
    level = at.found.value + at.penalty
    rounding = ROUNDING * float(jnp.finfo(level.dtype).eps) * (jnp.abs(at.found.value) + jnp.abs(at.penalty))
    fall = jnp.maximum(state.watch.start - level, 0) + rounding
    energy = jnp.minimum(jnp.minimum(way @ built, length * yardstick), 2 * fall)
    yardstick = jnp.minimum(yardstick, ratio(_ALONG * energy, length, jnp.inf))
    return state._replace(yardstick=yardstick, promise=ratio(promised, energy, jnp.inf))


def _relative(state: AdaptiveState, stationarity: Scalar) -> Scalar:
    """The larger of the two ratios that rtol refers to, or the third where that is smaller."""
    slopes = ratio(stationarity, state.yardstick, jnp.inf)
    cancelled = ratio(stationarity, _OF_TERMS * _terms(state.at), jnp.inf)
    return jnp.where(stationarity > 0, jnp.minimum(jnp.maximum(slopes, state.promise), cancelled), 0)


def _terms(at: Point) -> Scalar:
    """The size of the terms whose sum is d + s."""
    return at.found.terms + _tree.norm(at.subgradient)


def _first_radius(at: Point, slope: Scalar) -> Scalar:
    """A part of |x0|, the only length known before any curvature; from 0, the step that gains a part of f."""
    length = _tree.norm(at.x)
    level = jnp.abs(at.found.value + jnp.where(jnp.isfinite(at.penalty), at.penalty, 0))
    guess = _FIRST_GAIN * ratio(level, slope)
    return jnp.where(length > 0, _FIRST_STEP * length, jnp.where(guess > 0, guess, 1))


def _fault(before: AdaptiveState, after: AdaptiveState, new: Point, taken: Bool[Array, ""]) -> Int[Array, ""]:
    """Why the run cannot continue, if it cannot."""
    outcome, moves = new.found.outcome, before.started & ~before.steering.refine
    found, watch = after.at.found, after.watch
    eps = float(jnp.finfo(found.value.dtype).eps)
    still = (found.terms == 0) & (_tree.norm(_tree.subtract(after.trial.x, after.at.x)) == 0)
    short = _short(before, new.x, eps**_KINK * watch.longest, eps**_KINK)
    idle, stuck = moves & (watch.idle >= _MOST_IDLE), moves & short & ~taken
    # A step may be that short because there is nothing left to gain: then it meets rounding, not a kink.
    rounded = (outcome > Outcome.OK) | (after.at.gap <= eps**0.5 * jnp.maximum(watch.steepest, _terms(after.at)))
    kink = jnp.minimum(new.found.margin, found.margin) <= eps**0.5
    far = _tree.norm(_tree.subtract(after.at.x, after.x0)) > UNBOUNDED * watch.radius
    far = far | (found.value < -(float(jnp.finfo(found.value.dtype).max) ** BOTTOMLESS))
    left = new.found.saddles > before.at.found.saddles
    ends = {
        Fault.INFEASIBLE_START: ~before.started & ~jnp.isfinite(new.penalty),
        Fault.NONFINITE_START: ~before.started & (outcome == Outcome.NONFINITE),
        Fault.NEGATIVE_CURVATURE: (~before.started | stuck) & (outcome == Outcome.NEGATIVE_CURVATURE) | stuck & left,
        Fault.LOWER_UNSOLVED: ~before.started & (outcome == Outcome.UNSOLVED),
        Fault.FLAT_START: ~before.started & still,
        # An objective that is not even negative is not called unbounded.
        Fault.UNBOUNDED: moves & far & (found.value + after.at.penalty < 0) & (after.at.gap > _STEEP * watch.steepest),
        Fault.ACTIVE_SET: (idle | stuck) & kink & ~rounded,
        Fault.PRECISION: (idle | stuck) & (rounded | ~short),
        Fault.NONSMOOTH: idle | stuck,
    }
    return jnp.select(list(ends.values()), list(ends), Fault.NONE).astype(jnp.int32)


def _short(before: AdaptiveState, new: PyTree, length: Scalar, part: float) -> Bool[Array, ""]:
    """Whether a step is shorter than `length`, and no entry of x moves by more than this part of its own size: where
    entries differ much in size, the right step may be short beside the large ones. The size of an entry that goes to
    zero is its distance from x0.
    """
    x, x0, moved = (ravel_pytree(tree)[0] for tree in (before.at.x, before.x0, _tree.subtract(new, before.at.x)))
    sizes = jnp.maximum(jnp.abs(x), jnp.abs(x - x0))
    return jnp.all(jnp.abs(moved) <= jnp.where(sizes > 0, jnp.minimum(part * sizes, length), length))


def _linear(found: Evaluation) -> LinearInfo:
    none = jnp.int32(0)
    return LinearInfo(jnp.int32(int(LinearStatus.OK)), found.adjoint_residual, none, none)


def PenaltyProxBiO(penalty: float | None = None, memory: int = _MEMORY) -> AdaptiveProxBiO:
    """`AdaptiveProxBiO(Penalty(penalty), memory)`: the default solver without second derivatives.

    **Arguments:**

    - `penalty`: a fixed lambda; None chooses it.
    - `memory`: as in `AdaptiveProxBiO`.

    **Returns:** the solver. Reference: J. Kwon, D. Kwon, S. Wright, R. Nowak, 2023 (F2SA), see `Penalty`.

    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> x0 = y0 = jnp.array(0.0)
    >>> result = minimize(scalar_problem(), x0, y0, PenaltyProxBiO(), rtol=1e-4)
    >>> print(result.x.round(3), result.status.name, result.counts.hvp)  # the minimiser is 2
    2.0 CONVERGED 0
    """
    return AdaptiveProxBiO(Penalty(penalty), memory)
