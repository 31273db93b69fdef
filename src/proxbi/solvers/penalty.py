r"""Proximal BiO from gradients alone: the penalty method F2SA, two-sided, with every number found on the way.

How y* enters Phi shows when the lower problem is tilted. With p = f_y(x, y*) let

    w(t) = argmin_w g(x, w) + t <p, w>,     so that     w(0) = y*   and   w'(0) = -v,   g_yy v = p.

So grad Phi = f_x - g_xy v is f_x plus the derivative of g_x(x, w(t)) at t = 0. For a penalty lam and w_j = w(j/lam),

    d = f_x(x, y) + lam/2 (g_x(x, w_1) - g_x(x, w_-1)),     v = lam/2 (w_-1 - w_1).                              (D)

F2SA takes one side, lam (g_x(x, w) - g_x(x, y)) with w = argmin lam g + f. With two sides the error is O(1/lam^2) and
not O(1/lam): lam need not be so large that rounding, which is of order eps lam, eats what it gains. And p, the linear
part of f, has the same derivative at 0 as f: but so tilted the lower problems are as convex as g whatever lam is, an
inner step takes no gradient of f, and there is no error at all where g is quadratic in y.

    y, w_1, w_-1   by accelerated descent, each from where the others point to: the last y, y - v/lam, 2y - w_1
    x_{k+1}        in prox_{beta h}(x_k - beta d_k);   s_{k+1} in dh(x_{k+1}) as in `prox_bio`

What is found on the way:
- The inner accuracy. Descent estimates how far off y and w_j are; lam |g_xy| and |d' - d| / |y' - y| of the last move
  turn that into an error of d, to be 1/100 of |s + d|. For |g_xy|, g_x is also taken at the old y.
- lam. One more point, started at its extrapolation w_-1 + 3 (w_1 - y), shows the third derivative and with it the error
  of (D): lam/6 |g_x(w_2) - 3 g_x(w_1) + 3 g_x(y) - g_x(w_-1)|. lam goes where this is as small as the other errors
  need it: up as |s + d| falls, and down again where rounding is what is left.
- beta. A Barzilai-Borwein quotient of the last move, shortened until the objective falls below an average of the last
  ones (SpaRSA). Phi is taken as f(x, y) - <v, g_y(x, y)>, whose error is of second order in that of y; where rounding
  would drown the fall, the slopes at both ends give it.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.lower import Descent, accelerate
from proxbi.problem import Counts, Problem
from proxbi.solvers._base import Fault, Info, Solver


class PenaltyState(NamedTuple):
    """The iterates, what is known at x, and the numbers found so far (0: none yet)."""

    x: PyTree
    y: PyTree
    v: PyTree
    grad: PyTree
    subgradient: PyTree
    trial: PyTree
    """Where the next step evaluates: a prox step away, or x again where d must be better known."""
    value: Scalar
    stationarity: Scalar
    """|s + d|; before the first move |x - trial| / beta."""
    error: Scalar
    """An estimate of |d - grad Phi(x)|: all of its parts."""
    gain: Scalar
    """An estimate of |g_xy|."""
    sensitivity: Scalar
    """|d' - d| / |y' - y| of the last move."""
    penalty: Scalar
    step_size: Scalar
    slack: Scalar
    """How far the average of the last objectives is above the present one."""
    lower_step: Scalar
    flatness: Scalar
    """Of the lower problem, as `Descent` has it."""
    refine: Bool[Array, ""]
    moved: Bool[Array, ""]
    idle: Int[Array, ""]
    """Steps in a row with an error above the stationarity."""


class _Point(NamedTuple):
    """What an evaluation finds."""

    y: PyTree
    v: PyTree
    grad: PyTree
    value: Scalar
    inexactness: Scalar  # the error of d but for its bias, which is due to lam
    bias: Scalar
    gain: Scalar
    penalty: Scalar
    lower: Descent
    calls: Int[Array, ""]


_AIM = 0.01
"""The inner errors of d that are aimed at, relative to |s + d|."""
_TOLERABLE = 0.5
"""The error of d, relative to |s + d|, above which it is computed anew before x moves."""
_MOST_IDLE = 10
_AVERAGE = 0.85
"""The weight of the past in the average that the objective must fall below."""


class PenaltyProxBiO(Solver):
    r"""$x_{k+1} \in \mathrm{prox}_{\beta h}(x_k - \beta d_k)$ with
    $d = f_x + \tfrac\lambda2\,(g_x(x, w_1) - g_x(x, w_{-1}))$ and $w_{\pm1} = \arg\min_w g(x, w) \pm
    \langle f_y, w\rangle / \lambda$: first order, without Hessian-vector products, and without a number to choose.

    For lower levels whose second derivatives do not exist in code or are too dear; `AID` needs fewer calls where they
    are not. The stationarity it reports is |s + d| plus an estimate of |d - grad Phi|.

    **Arguments:**

    - `penalty`: lam, if it is to be fixed; None lets it follow the accuracy that is needed.

    References: J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully first-order method for stochastic bilevel optimization",
    2023 (F2SA); L. Chen, Y. Ma, J. Zhang, "Near-optimal nonconvex-strongly-convex bilevel optimization with fully
    first-order oracles", 2025 (F2BA); S. Wright, R. Nowak, M. Figueiredo, "Sparse reconstruction by separable
    approximation", 2009 (SpaRSA).

    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> x0 = y0 = jnp.array(0.0)
    >>> result = minimize(scalar_problem(), PenaltyProxBiO(), x0, y0, steps=50, tol=1e-4)
    >>> print(result.x.round(3), result.counts.hvp)  # the minimiser is 2
    2.0 0
    """

    certifies_end: ClassVar[bool] = True

    penalty: _check.Number | None = eqx.field(
        converter=lambda lam: None if lam is None else _check.as_float(lam), default=None
    )

    def __check_init__(self) -> None:
        if self.penalty is not None:
            _check.positive("penalty", self.penalty)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> PenaltyState:
        v, none, zero = _tree.zeros_like(y), _tree.zeros_like(x), jnp.zeros_like(_tree.norm((x, y)))
        state = PenaltyState(x, y, v, none, none, x, *[zero] * 10, *[jnp.asarray(False)] * 2, jnp.int32(0))
        lam = zero if self.penalty is None else self.penalty.astype(zero.dtype)
        return state._replace(penalty=lam, step_size=zero + 1)

    def step(self, problem: Problem, state: PenaltyState, key: PRNGKeyArray) -> tuple[PenaltyState, Info]:
        first = state.lower_step == 0
        stay = first | state.refine
        point, beta = _evaluate(problem, state), state.step_size
        error = point.inexactness + point.bias
        move, turn = _tree.subtract(state.trial, state.x), _tree.subtract(point.grad, state.grad)
        s = _tree.scale(-1 / beta, _tree.axpy(beta, state.grad, move))  # (x - beta d - trial) / beta
        s = _tree.where(stay, state.subgradient, s)
        fall = _tree.dot(move, move) / beta
        change = _change(problem, state, point, s, fall)
        accept = stay | (change <= state.slack - 0.005 * fall)

        slack = _AVERAGE * jnp.maximum(state.slack - change, 0)
        learnt = accept & ~stay & (_tree.norm(turn) > 2 * (error + state.error))
        sensitivity = _ratio(_tree.norm(turn), _tree.norm(_tree.subtract(point.y, state.y)))
        there = state._replace(
            x=state.trial,
            y=point.y,
            v=point.v,
            grad=point.grad,
            subgradient=s,
            value=point.value,
            stationarity=_tree.norm(_tree.axpy(1, s, point.grad)),
            error=error,
            gain=point.gain,
            sensitivity=jnp.where(learnt, sensitivity, state.sensitivity),
            penalty=point.penalty,
            slack=jnp.where(stay | ~jnp.isfinite(slack), state.slack, slack),
            lower_step=point.lower.step_size,
            flatness=point.lower.flatness,
            moved=state.moved | ~stay,
        )
        here = _tree.where(accept, there, state)
        adapted = jnp.where(stay, beta, _step_size(beta, move, turn, error + state.error, accept))
        beta = jnp.where(first, _ratio(_size(state.x) / 100, _tree.norm(point.grad), 1), adapted)

        trial = problem.regularizer.prox(_tree.axpy(-beta, here.grad, here.x), beta)
        mapping = _tree.norm(_tree.subtract(trial, here.x)) / beta
        gap = jnp.where(here.moved, here.stationarity, mapping)
        refine = (here.error > _TOLERABLE * gap) & (~state.refine | (error < 0.5 * state.error))
        idle = jnp.where(here.error > gap, state.idle + 1, 0)
        here = here._replace(
            trial=_tree.where(refine, here.x, trial),
            stationarity=gap,
            penalty=jnp.where(accept, self._penalty(point, gap), state.penalty),
            step_size=beta,
            refine=refine,
            idle=idle,
        )
        fault = jnp.where(idle > _MOST_IDLE, Fault.PRECISION, Fault.NONE)
        counts = Counts(grad_lower=point.calls, grad_upper=1, prox=1, value_upper=1, grad_lower_x=5)
        return here, Info(gap + here.error, point.lower.residual, None, counts, fault)

    def recheck(self, state: PenaltyState) -> PenaltyState:
        return state._replace(
            trial=state.x,
            refine=jnp.ones_like(state.refine),
            stationarity=0.1 * state.stationarity,  # what accuracy follows
            penalty=2 * state.penalty,  # leaves a quarter of the bias
        )

    def _penalty(self, point: _Point, gap: Scalar) -> Scalar:
        """The lam whose bias is what the other errors, or the stationarity `gap`, ask for: bias ~ 1 / lam^2."""
        lam = point.penalty
        if self.penalty is not None:
            return self.penalty.astype(lam.dtype)
        wanted = lam * jnp.sqrt(_ratio(point.bias, jnp.maximum(_AIM * gap, point.inexactness)))
        # Where lam may fall it does so only until w_1 is a tenth of |y| away from y.
        least = jnp.maximum(lam / 2, jnp.minimum(lam, 10 * _ratio(_tree.norm(point.v), _tree.norm(point.y))))
        return jnp.clip(wanted, least, 4 * lam)


def _evaluate(problem: Problem, state: PenaltyState) -> _Point:
    """y, v and d at the trial point, as exact as the stationarity at x asks for, with estimates of their errors."""
    x, first = state.trial, state.lower_step == 0
    accuracy = _AIM * state.stationarity  # of d
    spread = _ratio(accuracy, state.gain * state.penalty, jnp.inf)  # of w_j, and of y, which they start from
    enough = jnp.minimum(spread, _ratio(accuracy, state.sensitivity, jnp.inf))
    lower = accelerate(
        lambda w: problem.grad_lower(x, w),
        state.y,
        tol=jnp.where(first, 1e-4, 0),
        distance=jnp.where(jnp.isfinite(enough), enough, 0),
        step_size=state.lower_step,
        flatness=state.flatness,
    )
    y = lower.y
    upper_x, pull = problem.grad_upper(x, y)
    reach = lower.step_size * _tree.norm(pull)  # lam |w_1 - y| is at least this, for steps of 1/L
    # The first lam makes that a hundredth of the size of y.
    fresh = 100 * reach / jnp.maximum(_size(y), _tree.norm(state.y))
    lam = jnp.where(state.penalty > 0, state.penalty, jnp.where(reach > 0, fresh, 1))
    spread = jnp.where(jnp.isfinite(spread), spread, 0.01 * reach / lam)

    def tilted(j: int, start: PyTree, distance: Scalar) -> Descent:
        def gradient(w: PyTree) -> PyTree:
            return _tree.axpy(j / lam, pull, problem.grad_lower(x, w))

        return accelerate(gradient, start, distance=distance, step_size=lower.step_size, flatness=lower.flatness)

    up = tilted(1, _tree.axpy(-1 / lam, state.v, y), spread)
    down = tilted(-1, _tree.axpy(2, y, _tree.scale(-1, up.y)), 2 * spread)
    further = tilted(2, _tree.axpy(3, _tree.subtract(up.y, y), down.y), 8 * spread)
    slopes = [problem.grad_lower_x(x, w) for w in (up.y, down.y, further.y, y, state.y)]
    at_up, at_down, at_further, at_y, at_old = slopes
    v = _tree.scale(lam / 2, _tree.subtract(down.y, up.y))
    implicit = _tree.scale(lam / 2, _tree.subtract(at_up, at_down))
    third = _tree.axpy(3, _tree.subtract(at_y, at_up), _tree.subtract(at_further, at_down))

    by_v = _ratio(_tree.norm(implicit), _tree.norm(v))
    by_y = _ratio(_tree.norm(_tree.subtract(at_old, at_y)), _tree.norm(_tree.subtract(state.y, y)))
    gain = jnp.maximum(jnp.maximum(by_v, by_y), 0.8 * state.gain)  # each may be small by chance
    flatness = jnp.maximum(jnp.maximum(lower.flatness, up.flatness), down.flatness)
    off = gain * lam / 2 * (up.residual + down.residual) + state.sensitivity * lower.residual
    rounding = float(jnp.finfo(lam.dtype).eps) * lam / 2 * (_tree.norm(at_up) + _tree.norm(at_down))
    return _Point(
        y=y,
        v=v,
        grad=_tree.axpy(1, implicit, upper_x),
        value=problem.value_upper(x, y) - _tree.dot(v, lower.gradient),
        inexactness=flatness * off + rounding,
        bias=lam / 6 * _tree.norm(third),
        gain=gain,
        penalty=lam,
        lower=lower._replace(flatness=flatness),
        calls=lower.calls + up.calls + down.calls + further.calls,
    )


def _change(problem: Problem, state: PenaltyState, point: _Point, s: PyTree, fall: Scalar) -> Scalar:
    """The change of Phi + h from x to the trial point, where s is in dh."""
    before, after = problem.regularizer.value(state.x), problem.regularizer.value(state.trial)
    by_value = (point.value - state.value) + (after - before)
    eps = float(jnp.finfo(fall.dtype).eps)
    rounding = 8 * eps * sum(jnp.abs(value) for value in (point.value, state.value, before, after))
    slopes = _tree.axpy(1, _tree.axpy(1, s, point.grad), _tree.axpy(1, state.subgradient, state.grad))
    by_slope = 0.5 * _tree.dot(slopes, _tree.subtract(state.trial, state.x))
    return jnp.where(10 * rounding <= fall, by_value, by_slope)


# Of the two quotients of Barzilai and Borwein, <m, m> / <m, q> and <m, q> / <q, q>, the short one serves where they
# differ much (Zhou, Gao, Dai, 2006). Where errors may have made q, they tell nothing, but |m| / (|q| + errors) is still
# a step that q does not forbid.
def _step_size(beta: Scalar, move: PyTree, turn: PyTree, errors: Scalar, accepted: Bool[Array, ""]) -> Scalar:
    """The next beta after x has moved, or was to move, by `move` and d turned by `turn`."""
    square, bend, turned = _tree.dot(move, move), _tree.dot(move, turn), _tree.norm(turn)
    long = jnp.where(bend > 0, _ratio(square, bend), 4 * beta)
    short = jnp.where(bend > 0, _ratio(bend, turned) / jnp.where(turned > 0, turned, 1), long)
    quotient = jnp.where(short < 0.6 * long, short, long)
    allowed = jnp.maximum(beta, _ratio(_tree.norm(move), turned + errors))
    longer = jnp.where(turned > 2 * errors, quotient, allowed)
    return jnp.where(accepted, jnp.clip(longer, beta / 10, 10 * beta), jnp.clip(long, beta / 10, beta / 2))


def _size(tree: PyTree) -> Scalar:
    """|tree|, or 1 for zero, which has no size to go by."""
    size = _tree.norm(tree)
    return jnp.where(size > 0, size, 1)


def _ratio(a: Scalar, b: Scalar, otherwise: float = 0.0) -> Scalar:
    """a / b, or `otherwise` where b is 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), otherwise)
