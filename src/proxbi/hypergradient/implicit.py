r"""The implicit hypergradient, with its error under control.

With H = g_yy, the lower problem (by Newton's method: H e = -g_y) and the adjoint equation (H e = f_y - H v) both ask
for a *correction* e of what is known already. Sizes of corrections, and of the errors left in them, are measured in the
energy norm |e|_H = <e, H e>^1/2, in which both are dimensionless relative to each other, whatever the units of y, f and
g are. CG knows the energy of what it has found exactly: it adds alpha_j <r_j, M r_j> in step j. What is left is
|r|_{H^-1}, between <r, M r> / lambda_max(MH) and <r, M r> / lambda_min(MH); the longest CG step is an estimate of
1 / lambda_min(MH), and M, the L-BFGS matrix of all pairs (p, H p) met so far, brings both bounds together.

**The error of d.** Let c_y, c_v be the largest corrections made at this x and e_y, e_v what is left. Together the
corrections changed the hypergradient from that of the last x to d; if d depends on them linearly,

    E = (e_y / c_y + e_v / c_v) |d - d_last|                                                               (error)

is the error of d. Corrections go on, in rounds, until E is as small beside |d + s| as was asked for; in a further round
d_last is the d of the round before, and c the corrections of this round. (E is too small where the d of the new x with
the old y and v, which is not computed, was much further from d than d_last is. Then d is usually much larger than
d_last: where it is, a second round is made in any case, and without the pairs: those of another x, where H was quite
different, hide errors from M.)

**The error of the value.** Phi^ = f - <v, g_y> has the error <e_v', H e_y> with e_v' = e_v + the error of v that is due
to y; corrections of y by c_y went with corrections of v by c_v, so e_v' is about e_v + (c_v / c_y) e_y / 2.

**Lower steps** keep g finite and falling: a Newton step is shortened until g is finite, has not risen by more than
rounding, and its slope along the step has not turned nearly as steep upwards.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _check, _lbfgs, _tree
from proxbi._lbfgs import Inverse, Pairs
from proxbi._tree import Scalar
from proxbi.hypergradient._controlled import ControlledHypergradient, Evaluation, Outcome, ratio, unknown
from proxbi.linear import Krylov, LinearStatus, Matvec, conjugate_gradients
from proxbi.problem import Counts, Problem

_FIRST = 0.03  # gap / change before any is known: asks for corrections to 1e-3 at x0, when the accuracy is 0.1
_AIM = 0.3  # the part of the allowed error that a round aims at, so that one round is usually enough
_LOOSEST, _TIGHTEST = 0.3, 1e-6  # accuracies of a first round: looser ones teach nothing, tighter ones are rounding
_SUSPECT = 10  # times as large as the last d: a second round shows whether that is an error
_LARGEST_RESIDUAL = 0.1  # of the adjoint equation, relative to its right side
_MOST_ROUNDS = 4
_MOST_NEWTON_STEPS = 50
_MOST_TRIES = 30  # lengths of one Newton step: down to 0.1^30 at worst, 0.9^30 at best
_SHORTEST, _LONGEST = 0.1, 0.9  # by which a step that is too long is cut, at most and at least
_TURNED = 0.9  # a slope that has turned more than this part of its size upwards is too long a step
_SLACK = 1.5  # beyond the accuracy of the last Newton step, for its error: the next step would cost as much again
_LAST_DIGITS = 10  # a step of so many units of rounding ends Newton's method
_ROUNDING = 10  # units of rounding by which a value may be off
_MOST_NUMBERS = 4e7  # kept as pairs
_PASSES = 20  # over y, for each pair and call of the preconditioner, as measured
_LEAST_MEMORY, _MEMORY, _USEFUL = 40, 80, 8  # pairs: one for so many entries of y, and between these
_INNER_STEPS = 3_000  # seconds of work, where a product takes part of a millisecond
_SMALL = 4096  # entries of y, up to which passes cost less than the calls themselves

_LOWER, _ADJOINT, _DONE = range(3)
"""What the next correction is for."""


class Learned(NamedTuple):
    """The carry of `Implicit`."""

    conditioner: Inverse | None
    """Of H; None if the problem has its own."""
    relation: Scalar
    """|d + s| / |d - d_last| at the last x: how small errors must be beside corrections."""


class _Correction(NamedTuple):
    step: PyTree
    size: Scalar
    left: Scalar
    longest: Scalar
    residual: Scalar
    status: Int[Array, ""]
    matvecs: Int[Array, ""]
    pairs: Pairs | None


class _At(NamedTuple):
    """The corrections so far."""

    phase: Int[Array, ""]
    y: PyTree
    v: PyTree
    lower: tuple[Scalar, PyTree]  # g and g_y
    upper: tuple[Scalar, PyTree, PyTree]  # f, f_x and f_y
    grad: PyTree
    before: PyTree  # the d of the round before, or of the last x
    sizes: tuple[Scalar, Scalar]  # of the largest corrections of y and of v in this round
    left: tuple[Scalar, Scalar]  # what is still wrong with them
    residual: Scalar  # |f_y - H v|
    accuracy: Scalar  # of the corrections of this round
    error: Scalar
    longest: Scalar  # the longest CG step, an estimate of 1 / lambda_min(MH)
    shortened: Bool[Array, ""]  # whether the last step of y was
    tiny: Bool[Array, ""]  # and whether it changed no more than half of its digits
    rounds: Int[Array, ""]
    newton: Int[Array, ""]
    outcome: Int[Array, ""]
    counts: Counts
    conditioner: Inverse | None


class Implicit(ControlledHypergradient):
    r"""$d = f_x - g_{xy} v$, $g_{yy} v = f_y$ at $y \approx y^*(x)$, by Newton's method and preconditioned CG.

    Both solves go on until the estimate $E = (e_y/c_y + e_v/c_v)\,|d - d_{last}|$ of $|d - \nabla\Phi(x)|$ is small
    beside $|d + s|$: e are the errors left in y and v, c the corrections made at this x, in the norm $\langle e,
    g_{yy} e\rangle^{1/2}$, in which nothing has a unit.

    **Arguments:**

    - `memory`: how many pairs (p, g_yy p) are kept as a preconditioner, at most; fewer where they would cost more than
      the products they save.
    - `inner_steps`: the most products with g_yy in one evaluation: a guard against lower levels that cannot be solved.

    >>> from proxbi.analytic import scalar_problem
    >>> problem, x = scalar_problem(), jnp.array(3.0)
    >>> hypergradient = Implicit()
    >>> found = hypergradient(problem, x, hypergradient.init(problem, x, jnp.array(0.0)), jnp.array(0.0), 0.1)
    >>> print(found.grad, found.error <= 0.1)
    1.0 True
    """

    memory: int = eqx.field(static=True, default=_MEMORY)
    inner_steps: int = eqx.field(static=True, default=_INNER_STEPS)

    def __check_init__(self) -> None:
        _check.positive_int("memory", self.memory)
        _check.positive_int("inner_steps", self.inner_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> Evaluation:
        known = unknown(x, y, None)
        own = type(problem).preconditioner is not Problem.preconditioner
        conditioner = None if own else _lbfgs.inverse(_lbfgs.empty(y, self._room(problem, x, y)))
        return known._replace(carry=Learned(conditioner, jnp.full_like(known.value, _FIRST)))

    def _room(self, problem: Problem, x: PyTree, y: PyTree) -> int:
        """How many pairs are worth their cost: as many as y can use, and no more than cost as much as a product."""
        size = sum(leaf.size for leaf in jax.tree.leaves(y))
        room = min(self.memory, max(_LEAST_MEMORY, size // _USEFUL), int(_MOST_NUMBERS) // (2 * size))
        if size > _SMALL:
            room = min(room, int(_work(problem, x, y) / (_PASSES * size)))
        return max(1, room)  # one at least: it gives the scale of M

    def __call__(
        self, problem: Problem, x: PyTree, last: Evaluation, subgradient: PyTree, accuracy: Scalar
    ) -> Evaluation:
        accuracy = jnp.asarray(accuracy, last.value.dtype)
        first = _start(problem, x, last, jnp.clip(_AIM * accuracy * last.carry.relation, _TIGHTEST, _LOOSEST))

        def gap(at: _At) -> Scalar:
            return _tree.norm(_tree.axpy(1, subgradient, at.grad))

        def correct(at: _At) -> _At:
            hvp, own = problem.hvp(x, at.y), problem.preconditioner(x, at.y)
            precondition = _preconditioner(own, at.conditioner)
            adjoint = at.phase == _ADJOINT

            def of_v() -> tuple[PyTree, tuple[Scalar, PyTree, PyTree]]:
                value, (upper_x, upper_y) = problem.value_and_grad_upper(x, at.y)
                return _tree.subtract(upper_y, hvp(at.v)), (value.astype(accuracy.dtype), upper_x, upper_y)

            rhs, upper = jax.lax.cond(adjoint, of_v, lambda: (_tree.scale(-1, at.lower[1]), at.upper))
            steps = self.inner_steps - at.counts.hvp
            e = _correction(hvp, rhs, at, adjoint, precondition, steps)
            at = at._replace(
                upper=upper,
                counts=at.counts + Counts(hvp=e.matvecs),
                longest=jnp.maximum(at.longest, e.longest),
                conditioner=None if e.pairs is None else _lbfgs.inverse(e.pairs),
            )
            solved = (e.matvecs == 0) & (e.status == int(LinearStatus.OK))
            at = jax.lax.switch(
                jnp.where(adjoint, 0, jnp.where(solved, 1, 2)),
                [
                    lambda: _after_adjoint(problem, x, at, e),
                    lambda: at._replace(phase=jnp.int32(_ADJOINT), left=(e.left, at.left[1])),
                    lambda: _after_newton(problem, x, at, e),
                ],
            )
            return _round_judged(at, adjoint, last.terms > 0, accuracy * gap(at), steps)

        at = jax.lax.while_loop(lambda at: at.phase != _DONE, correct, first)
        return _evaluation(at, gap(at), last)


def _start(problem: Problem, x: PyTree, last: Evaluation, accuracy: Scalar) -> _At:
    value, gradient = problem.value_and_grad_lower(x, last.y)
    zero, none, no = jnp.zeros_like(accuracy), jnp.int32(0), jnp.asarray(False)
    finite = jnp.isfinite(value) & _tree.all_finite(gradient)
    return _At(
        phase=jnp.where(finite, jnp.where(_tree.norm(gradient) == 0, _ADJOINT, _LOWER), _DONE).astype(jnp.int32),
        y=last.y,
        v=last.v,
        lower=(value.astype(accuracy.dtype), gradient),
        upper=(zero, _tree.zeros_like(x), _tree.zeros_like(last.y)),
        grad=last.grad,
        before=last.grad,
        sizes=(zero, zero),
        left=(zero, zero),
        residual=zero,
        accuracy=accuracy,
        error=zero,
        longest=zero + 1,
        shortened=no,
        tiny=no,
        rounds=none,
        newton=none,
        outcome=jnp.where(finite, int(Outcome.OK), int(Outcome.NONFINITE)).astype(jnp.int32),
        counts=jax.tree.map(jnp.int32, Counts(grad_lower=1)),
        conditioner=last.carry.conditioner,
    )


def _correction(
    hvp: Matvec, rhs: PyTree, at: _At, adjoint: Array, precondition: Matvec, steps: Int[Array, ""]
) -> _Correction:
    """e with H e = rhs, until its error is at most the accuracy times the larger of |e|_H and earlier corrections. No
    product is taken where y is good enough as it is: then the turn is at v.
    """
    scale = _tree.norm(rhs)
    unit = jnp.where(scale > 0, scale, 1)
    known = jnp.where(adjoint, at.sizes[1], at.sizes[0]) / unit
    eps = float(jnp.finfo(scale.dtype).eps)

    def left(cg: Krylov) -> Scalar:
        return jnp.sqrt(jnp.maximum(cg.decrease, 0) * jnp.where(cg.iterations > 0, cg.longest, at.longest))

    def enough(cg: Krylov) -> Array:
        of_y = (cg.iterations == 0) & ~adjoint
        small = left(cg) <= jnp.where(of_y, _SLACK, 1) * at.accuracy * jnp.maximum(jnp.sqrt(cg.energy), known)
        # Where steps are in the last digits and no longer help, all that is left is rounding.
        rounded = of_y & at.tiny & (unit * left(cg) > 0.5 * at.left[0])
        return (small & ~(of_y & at.shortened)) | rounded

    last, unit = conjugate_gradients(
        hvp,
        rhs,
        None,
        enough,
        steps=steps,
        precondition=precondition,
        observe=lambda pairs, p, hp: None if pairs is None else _lbfgs.push(pairs, p, hp, eps)[0],
        observed=None if at.conditioner is None else at.conditioner.pairs,
        verify=False,
    )
    step, size = _tree.scale(unit, last.v), unit * jnp.sqrt(last.energy)
    return _Correction(
        step, size, unit * left(last), last.longest, unit * last.size, last.status, last.matvecs, last.observed
    )


# A step of Newton's method. Gradients, whose noise is far below that of values, tell its length: along a direction p
# the slope <g_y(y + t p), p> of a convex g grows from a negative value, and t is too long only if the slope has turned
# nearly as steep upwards. The secant through both slopes then meets zero where a quadratic would.
def _after_newton(problem: Problem, x: PyTree, at: _At, e: _Correction) -> _At:
    before, slope = at.lower[0], _tree.dot(at.lower[1], e.step)
    eps = float(jnp.finfo(slope.dtype).eps)
    highest = before + _ROUNDING * eps * jnp.abs(before)
    Trial = tuple[Scalar, Scalar, PyTree, tuple[Scalar, PyTree], Array]

    def too_long(trial: Trial) -> Array:
        _, there, _, (value, _), tries = trial
        good = (there <= -_TURNED * slope) & (value <= highest)
        return (tries == 0) | (~good & (tries <= _MOST_TRIES))

    def look(trial: Trial) -> Trial:
        length, there, _, (value, _), tries = trial
        meets_zero = slope / (slope - there)
        # Where g is not finite, its slopes say nothing, though they may be finite: those of a logarithm are.
        known = jnp.isfinite(value) & jnp.isfinite(meets_zero) & (meets_zero > 0)
        shorter = jnp.where(known, meets_zero, _SHORTEST)
        length = length * jnp.where(tries == 0, 1, jnp.clip(shorter, _SHORTEST, _LONGEST))
        moved = _tree.axpy(length, e.step, at.y)
        value, gradient = problem.value_and_grad_lower(x, moved)
        return length, _tree.dot(gradient, e.step), moved, (value.astype(slope.dtype), gradient), tries + 1

    first = (jnp.ones_like(slope), jnp.zeros_like(slope), at.y, at.lower, jnp.int32(0))
    _, _, moved, lower, tries = jax.lax.while_loop(too_long, look, first)
    finite = jnp.isfinite(lower[0]) & _tree.all_finite(lower[1]) & jnp.isfinite(slope)
    step, size = _tree.norm(e.step), _tree.norm(at.y)
    ended = step <= _LAST_DIGITS * eps * size
    used_up = e.status == int(LinearStatus.BUDGET)
    given_up = used_up | (at.newton + 1 >= _MOST_NEWTON_STEPS) | (tries > _MOST_TRIES)
    faults = [
        _broken(e.status),
        jnp.where(finite, 0, int(Outcome.NONFINITE)),
        jnp.where(given_up, int(Outcome.UNSOLVED), 0),
    ]
    outcome = jnp.select([fault > 0 for fault in faults], faults, int(Outcome.OK)).astype(jnp.int32)
    outcome = jnp.where(ended & (outcome == int(Outcome.UNSOLVED)), int(Outcome.OK), outcome).astype(jnp.int32)
    return at._replace(
        phase=jnp.where(outcome > 0, _DONE, jnp.where(ended, _ADJOINT, _LOWER)).astype(jnp.int32),
        y=_tree.where(outcome > 0, at.y, moved),
        lower=_tree.where(outcome > 0, at.lower, lower),
        sizes=(jnp.maximum(at.sizes[0], e.size), at.sizes[1]),
        left=(e.size, at.left[1]),
        newton=at.newton + 1,
        counts=at.counts + Counts(grad_lower=tries),
        shortened=tries > 1,
        tiny=step <= eps**0.5 * size,
        outcome=outcome,
    )


def _after_adjoint(problem: Problem, x: PyTree, at: _At, e: _Correction) -> _At:
    """v with its correction, the hypergradient, and its error."""
    v = _tree.axpy(1, e.step, at.v)
    grad = _tree.subtract(at.upper[1], problem.cross(x, at.y)(v))
    sizes, left = (at.sizes[0], jnp.maximum(at.sizes[1], e.size)), (at.left[0], e.left)
    change = _tree.norm(_tree.subtract(grad, at.before))
    finite = _tree.all_finite(grad) & jnp.isfinite(at.upper[0])
    return at._replace(
        v=v,
        grad=grad,
        sizes=sizes,
        left=left,
        # A round leaves of the error before it what its corrections leave of what they correct, and no less.
        error=jnp.maximum((ratio(left[0], sizes[0]) + ratio(left[1], sizes[1])) * change, at.accuracy * at.error),
        residual=e.residual,
        rounds=at.rounds + 1,
        outcome=jnp.where(finite, _broken(e.status), int(Outcome.NONFINITE)).astype(jnp.int32),
        counts=at.counts + Counts(grad_upper=1, hvp=1, cross=1),
    )


def _round_judged(at: _At, adjoint: Array, known: Array, allowed: Scalar, steps: Int[Array, ""]) -> _At:
    """After the adjoint: done, or another round of both solves, as much more accurate as the error asks for."""
    # A residual that large makes v, and with it d and the value, meaningless, whatever the energies say.
    rough = (at.error > allowed) | (at.residual > _LARGEST_RESIDUAL * _tree.norm(at.upper[2]))
    suspect = (at.rounds == 1) & (_tree.norm(at.grad) > _SUSPECT * _tree.norm(at.before)) & known
    possible = adjoint & (at.outcome == Outcome.OK) & (at.rounds < _MOST_ROUNDS) & (at.counts.hvp < steps)
    more = possible & (rough | suspect)
    accuracy = jnp.clip(_AIM * ratio(allowed, at.error, 1.0), _TIGHTEST, _LOOSEST)
    outcome = jnp.where(rough & ~more & (at.outcome == Outcome.OK), int(Outcome.ROUGH), at.outcome)
    return at._replace(
        phase=jnp.where(adjoint, jnp.where(more, _LOWER, _DONE), at.phase).astype(jnp.int32),
        accuracy=jnp.where(more, accuracy, at.accuracy),
        before=_tree.where(more, at.grad, at.before),
        sizes=_tree.where(more, _tree.zeros_like(at.sizes), at.sizes),
        conditioner=_tree.where(suspect, _lbfgs.forgotten(at.conditioner), at.conditioner),
        outcome=jnp.where(adjoint, outcome, at.outcome).astype(jnp.int32),
    )


def _evaluation(at: _At, gap: Scalar, last: Evaluation) -> Evaluation:
    value, upper_x, upper_y = at.upper
    change = _tree.norm(_tree.subtract(at.grad, last.grad))
    corrected = _tree.dot(at.v, at.lower[1])
    of_y = ratio(at.sizes[1], at.sizes[0]) * at.left[0]
    return Evaluation(
        y=at.y,
        v=at.v,
        grad=at.grad,
        value=value - corrected,
        error=at.error,
        value_error=at.left[0] * (at.left[1] + 0.5 * of_y),
        bias=jnp.zeros_like(value),
        terms=_tree.norm(upper_x) + _tree.norm(_tree.subtract(upper_x, at.grad)),
        lower_residual=_tree.norm(at.lower[1]),
        adjoint_residual=ratio(at.residual, _tree.norm(upper_y)),
        outcome=at.outcome,
        counts=at.counts,
        carry=Learned(
            at.conditioner, jnp.where(at.outcome <= Outcome.ROUGH, ratio(gap, change, 1.0), last.carry.relation)
        ),
    )


def _broken(status: Int[Array, ""]) -> Int[Array, ""]:
    """The outcome of a linear solve."""
    broken = [status == int(LinearStatus.NEGATIVE_CURVATURE), status == int(LinearStatus.NONFINITE)]
    return jnp.select(broken, [int(Outcome.NEGATIVE_CURVATURE), int(Outcome.NONFINITE)], int(Outcome.OK)).astype(
        jnp.int32
    )


def _preconditioner(own: Matvec | None, learned: Inverse | None) -> Matvec:
    """What was learned, or what the problem brings, or none."""
    if learned is not None:
        return learned.__matmul__
    return own or (lambda r: r)


def _work(problem: Problem, x: PyTree, y: PyTree) -> float:
    """The operations of one product with g_yy, as the compiler counts them before it optimises."""
    shapes = jax.eval_shape(lambda *trees: trees, problem, x, y, y)
    counted = jax.jit(lambda p, x, y, u: p.hvp(x, y)(u)).lower(*shapes).cost_analysis()
    return float((counted or {}).get("flops", 0.0))
