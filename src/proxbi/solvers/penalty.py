r"""Proximal BiO from gradients alone, with every number found on the way.

    x_{k+1} = argmin_u <d_k, u - x_k> + <u - x_k, B_k (u - x_k)> / 2 + h(u),     d_k by (D) of `_tilted.py`

is the step of `AdaptiveProxBiO` (`_proximal_newton.py`; B the BFGS matrix of the moves and the turns of d along them):
only d is made without second derivatives. With s_{k+1} in dh(x_{k+1}) from that step, |s + d| plus the error of d is
the stationarity at the x a step leaves. Three things follow it down:
- the inner solves, so that their part of the error of d is 1/100 of |s + d|;
- lam, so that the bias of d, which is of order 1 / lam^2, is as small; where rounding or the inner solves make more of
  an error than that, lam rather falls until both are equal;
- where the error of d still is more than half of |s + d|, d is taken again at the same x before anything else.
Phi is taken as f - <v, g_y>, and must fall; where rounding or the error of d would drown the fall, the slopes at both
ends tell it. After a step that was refused, a multiple of the identity is added to B; the turn of d there is learned
all the same.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from proxbi import _check, _tree, secant
from proxbi._tree import Scalar
from proxbi.problem import Counts, Problem
from proxbi.secant import Secants
from proxbi.solvers import _tilted
from proxbi.solvers._base import Fault, Info, Solver
from proxbi.solvers._proximal_newton import propose
from proxbi.solvers._tilted import Point, ratio

_AIM = 0.01
"""The error of d that inner solves and lam aim at, relative to |s + d|."""
_TOLERABLE = 0.5
"""The error, relative to |s + d|, above which d is taken again before x moves."""
_SUFFICIENT_DECREASE = 1e-4
_MOST_IDLE = 10
_LARGEST_MEMORY = 4e7  # numbers kept as pairs, at most


class PenaltyState(NamedTuple):
    """The last point that was taken, and where the next step looks."""

    x: PyTree
    point: Point
    subgradient: PyTree
    """An element of dh(x)."""
    stationarity: Scalar
    """|s + d|; before the first move the size of the proximal step."""
    trial: PyTree
    """Where the next step evaluates: ahead, or at x again."""
    trial_subgradient: PyTree
    pairs: Secants
    scale: Scalar
    """The multiple of I that B starts from."""
    shift: Scalar
    """The multiple of I added to B after refused steps."""
    relax: Scalar
    """The factor on B where moves have shown no curvature."""
    refine: Bool[Array, ""]
    moved: Bool[Array, ""]
    idle: Int[Array, ""]
    """Steps in a row that ended with an error above the tolerable."""

    @property
    def y(self) -> PyTree:
        return self.point.y

    @property
    def v(self) -> PyTree:
        return self.point.v

    @property
    def grad(self) -> PyTree:
        return self.point.grad


class PenaltyProxBiO(Solver):
    r"""Proximal quasi-Newton steps on hypergradients made of gradients only,

    $$d = f_x(x, y) + \tfrac\lambda2\,\big(g_x(x, w_1) - g_x(x, w_{-1})\big), \qquad
    w_{\pm1} = \arg\min_w\; g(x, w) \pm \langle f_y(x, y), w\rangle / \lambda :$$

    no Hessian-vector products, and no number to choose. For lower levels whose second derivatives are not available or
    too dear; where they are at hand, the default `AdaptiveProxBiO` needs fewer calls. The stationarity it reports is
    |s + d|, s in dh(x), plus an estimate of |d - grad Phi(x)|.

    **Arguments:**

    - `penalty`: lam, if it is to be fixed; None lets it follow the accuracy that is needed.
    - `memory`: how many moves the model of Phi is made of, at most.

    References: J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully first-order method for stochastic bilevel optimization",
    2023 (F2SA); L. Chen, Y. Ma, J. Zhang, "Near-optimal nonconvex-strongly-convex bilevel optimization with fully
    first-order oracles", 2025 (F2BA).

    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> x0 = y0 = jnp.array(0.0)
    >>> result = minimize(scalar_problem(), PenaltyProxBiO(), x0, y0, rtol=1e-4)
    >>> print(result.x.round(3), result.status.name, result.counts.hvp)  # the minimiser is 2
    2.0 CONVERGED 0
    """

    certifies_end: ClassVar[bool] = True

    penalty: _check.Number | None = eqx.field(
        converter=lambda lam: None if lam is None else _check.as_float(lam), default=None
    )
    memory: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        if self.penalty is not None:
            _check.positive("penalty", self.penalty)
        _check.positive_int("memory", self.memory)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> PenaltyState:
        none, zero = _tree.zeros_like(x), jnp.zeros_like(_tree.norm((x, y)))
        lam = zero if self.penalty is None else self.penalty.astype(zero.dtype)
        flat = ravel_pytree(x)[0]
        room = max(2, min(self.memory, int(_LARGEST_MEMORY) // (2 * flat.size)))
        return PenaltyState(
            x=x,
            point=_tilted.start(x, y, lam),
            subgradient=none,
            stationarity=zero,
            trial=x,
            trial_subgradient=none,
            pairs=secant.empty(flat, room),
            scale=zero,
            shift=zero,
            relax=zero + 1,
            refine=jnp.asarray(False),
            moved=jnp.asarray(False),
            idle=jnp.int32(0),
        )

    def step(self, problem: Problem, state: PenaltyState, key: PRNGKeyArray) -> tuple[PenaltyState, Info]:
        old = state.point
        first = old.step_size == 0
        stays = first | state.refine
        new, counts = _tilted.evaluate(problem, state.trial, old, _AIM * state.stationarity)
        taken = stays | _falls(problem, state, new)
        state = self._learn(state, new, stays, taken)

        s = _tree.where(stays, state.subgradient, state.trial_subgradient)
        gap = _tree.norm(_tree.axpy(1, s, new.grad))
        there = state._replace(x=state.trial, point=new, subgradient=s, stationarity=gap, moved=state.moved | ~stays)
        state = _tree.where(taken, there, state)
        scale = jnp.where(first, _first_scale(problem, state), state.scale)
        curvature = secant.model(state.pairs, scale)
        model = curvature.scaled(state.relax, state.shift)
        ahead = propose(problem.regularizer, state.x, state.grad, model, state.pairs.pushed > 0)
        mapping = _tree.norm(_tree.axpy(1, ahead.subgradient, state.grad))
        gap = jnp.where(state.moved, state.stationarity, mapping)

        doubt, before = self._curable(state.point), self._curable(old)
        again = (doubt > _TOLERABLE * gap) & (~state.refine | (doubt < 0.5 * before))
        lam = jnp.where(taken, self._penalty(new, gap), old.penalty)
        idle = jnp.where(state.point.inexactness > _TOLERABLE * gap, state.idle + 1, 0)
        state = state._replace(
            point=state.point._replace(penalty=lam),
            stationarity=gap,
            trial=_tree.where(again, state.x, ahead.x),
            trial_subgradient=ahead.subgradient,
            scale=curvature.sigma,
            refine=again,
            idle=idle,
        )
        fault = jnp.where(idle > _MOST_IDLE, Fault.PRECISION, Fault.NONE)
        counts = counts + Counts(prox=ahead.proxes)
        return state, Info(gap + state.point.error, state.point.residual, None, counts, fault)

    def recheck(self, state: PenaltyState) -> PenaltyState:
        return state._replace(
            trial=state.x,
            refine=jnp.ones_like(state.refine),
            stationarity=0.1 * state.stationarity,  # which the accuracy follows
            point=state.point._replace(penalty=2 * state.point.penalty),  # leaves a quarter of the bias
        )

    def _curable(self, point: Point) -> Scalar:
        """The error of d that taking it again may lessen."""
        return point.error if self.penalty is None else point.inexactness

    def _learn(self, state: PenaltyState, new: Point, stays: Bool[Array, ""], taken: Bool[Array, ""]) -> PenaltyState:
        """B after the look at the trial point: the pair if errors did not make it, and how far B is to be trusted.

        B is relaxed where it foresaw a turn that errors cannot hide, |B m| = |d + s'|, and there was none: where errors
        would hide it, a move says nothing about B, and steps would grow until one leads away from the solution.
        """
        move, turn = _tree.subtract(state.trial, state.x), _tree.subtract(new.grad, state.grad)
        noise = 2 * (self._curable(new) + self._curable(state.point))  # of d as a field: a fixed lam biases both ends
        clear = _tree.norm(turn) > noise
        foreseen = _tree.norm(_tree.axpy(1, state.trial_subgradient, state.grad)) > noise
        pairs, kept = secant.push(state.pairs, ravel_pytree(move)[0], ravel_pytree(turn)[0], 1e-8)
        learned, flat = ~stays & kept & clear, ~stays & taken & (clear | foreseen)
        shrunk = jnp.where(state.shift > 1e-3 * state.scale, state.shift / 10, 0)
        grown = jnp.maximum(4 * state.shift, jnp.where(state.pairs.pushed > 0, 0.3, 1.0) * state.scale)
        return state._replace(
            pairs=_tree.where(learned, pairs, state.pairs),
            shift=jnp.where(stays, state.shift, jnp.where(taken, shrunk, grown)),
            relax=jnp.where(learned, 1, jnp.where(flat, 0.3, 1) * state.relax),
        )

    def _penalty(self, point: Point, gap: Scalar) -> Scalar:
        """The lam whose bias, of order 1 / lam^2, is what `gap` = |s + d| asks for, or what the other errors allow."""
        lam = point.penalty
        if self.penalty is not None:
            return self.penalty.astype(lam.dtype)
        wanted = lam * jnp.sqrt(ratio(point.bias, jnp.maximum(_AIM * gap, point.inexactness)))
        apart = 10 * ratio(_tree.norm(point.v), _tree.norm(point.y))  # here w_1 is a tenth of |y| away from y: enough
        return jnp.clip(wanted, jnp.maximum(lam / 2, jnp.minimum(lam, apart)), 4 * lam)


def _first_scale(problem: Problem, state: PenaltyState) -> Scalar:
    """Without curvature, the objective sets the scale of the first step: a tenth of it is to be gained."""
    size = _tree.norm(state.grad)
    level = jnp.abs(state.point.value + problem.regularizer.value(state.x))
    known = (level > 0) & jnp.isfinite(level) & (size > 0)
    return jnp.where(known, size**2 / jnp.where(known, 0.1 * level, 1), 1)


def _falls(problem: Problem, state: PenaltyState, new: Point) -> Bool[Array, ""]:
    """Whether Phi + h falls by a part of <m, B m> = -<m, d + s'>, with m the move and s' in dh at the trial point.

    Values say nothing about the step where rounding hides that fall, or the error of d does: with a biased d, what d
    asks for may go up. There <m, d + d'> / 2 + <m, s'> stands for the change; for a convex h it is not too low.
    """
    old, move = state.point, _tree.subtract(state.trial, state.x)
    before, after = problem.regularizer.value(state.x), problem.regularizer.value(state.trial)
    change = (new.value - old.value) + (after - before)
    eps = float(jnp.finfo(change.dtype).eps)
    rounding = 8 * eps * sum(jnp.abs(value) for value in (new.value, old.value, before, after))
    promised = -_tree.dot(move, _tree.axpy(1, state.trial_subgradient, old.grad))
    by_slopes = 0.5 * _tree.dot(move, _tree.subtract(new.grad, old.grad)) - promised
    drowned = promised < jnp.maximum(100 * rounding, 0.5 * _tree.norm(move) * (new.error + old.error))
    change = jnp.where(drowned & jnp.isfinite(change), by_slopes, change)  # out of the domain of h, or into it: values
    return change <= -_SUFFICIENT_DECREASE * promised
