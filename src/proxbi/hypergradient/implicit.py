r"""The implicit hypergradient, with its error under control.

With H = g_yy, the lower problem (by Newton's method: H e = -g_y) and the adjoint equation (H e = f_y - H v) both ask
for a *correction* e of the present y or v. Sizes of corrections, and of the errors left in them, are measured in the
energy norm |e|_H = <e, H e>^1/2, in which their ratio has no unit, whatever the units of y, f and g are. CG gives the
energy of its iterate exactly: step j adds alpha_j <r_j, M r_j>. The error left is |r|_{H^-1}, between <r, M r> /
lambda_max(MH) and <r, M r> / lambda_min(MH); the longest CG step is an estimate of 1 / lambda_min(MH), and M, the
L-BFGS matrix of the pairs (p, H p) met so far, brings the two bounds together.

**The error of d.** Let c_y, c_v be the largest corrections made at this x and e_y, e_v the errors left. Together the
corrections changed the hypergradient from that of the last x to d; if d depends on them linearly,

    E = (e_y / c_y + e_v / c_v) |d - d_last|                                                               (error)

is the error of d. Corrections continue, in rounds, until E is as small relative to |d + s| as required; in a further
round d_last is the d of the round before, and c the corrections of this round. (E is too small where the d of the new x
with the old y and v, which is not computed, was much further from d than d_last is.)

**At x0** there is nothing to judge errors by: CG has seen only some curvatures, and where these are large and others
are not, as with features of very different scales, it greatly underestimates the errors. So the first corrections are
made to 1e-6 of their size (in float32 to 1e-5, below which is rounding). That costs some products once, and M learns
more curvatures from them.

**The error of the value.** Phi^ = f - <v, g_y> has the error <e_v', H e_y> with e_v' = e_v + the error of v that is due
to y; corrections of y by c_y went with corrections of v by c_v, so e_v' is about e_v + (c_v / c_y) e_y / 2.

**Saddles.** Where CG meets a direction p with <p, H p> <= 0, in either of the two equations, y is not near a minimiser.
The step is then the part of Newton's step that CG had found, plus a tenth of |y| along p, downhill: y leaves the saddle
and continues to a local minimiser of g. So the branch of minimisers that a run follows may fork or end as x changes:
the run moves to another one, and of two equal ones to that where f is smaller. Phi may jump there, and the trial is
judged like any other.

**Lower steps** keep g finite and falling. With a lower regularizer, H, g_y, f_y and g_xy stand for their counterparts
on the active face (`_lower_level.py`); the loop is the same.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _check, _lbfgs, _tree
from proxbi._damped import LAST_DIGITS
from proxbi._lbfgs import Pairs
from proxbi._lower_level import Linearised, Lower, advance, first_probe, linearised, look, margin
from proxbi._tree import Scalar
from proxbi.hypergradient._controlled import ControlledHypergradient, Evaluation, Outcome, ratio, unknown
from proxbi.linear import Krylov, LinearStatus, Matvec, conjugate_gradients
from proxbi.problem import Counts, Problem, ridged

_FIRST = 3e-5  # gap / change at x0, where none is known yet: corrections are made to 1e-6 of their size
_AIM = 0.3  # the part of the allowed error that a round aims at, so that one round is usually enough
_LOOSEST, _TIGHTEST = 0.3, 1e-6  # accuracies of a first round: looser ones teach nothing, tighter ones are rounding
_LARGEST_RESIDUAL = 0.1  # of the adjoint equation, relative to its right side
_MOST_ROUNDS = 4
_MOST_NEWTON_STEPS = 50
_AMONG_SADDLES = 4  # times as many where g is not convex: most of them only lead to a region where it is
_PATIENCE = 10  # Newton steps on a convex g; after these each is twice as accurate: CG may miss flat directions
_SLACK = 1.5  # beyond the accuracy of the last Newton step, for its error: the next step would cost as much again
_SHRINKS = 0.5  # Newton steps that do not shrink to this part of the last one may never end: g has no minimiser
_PASSES = 20  # over y, for each pair and call of the preconditioner, as measured
_LEAST_MEMORY, _MEMORY, _USEFUL = 40, 80, 8  # pairs: one for so many entries of y, and between these
_INNER_STEPS = 3_000  # seconds of work, where a product takes part of a millisecond
_UNSETTLED_STEPS = 50  # products for a Newton step before the active set is known
_CLEAR = 0.75  # power of the rounding unit: a cosine between p and H p that is further below 0 is not rounding
_ESCAPE = 0.1  # of the size of y: a step along negative curvature, shortened if g does not fall that far
_GROWTH = 2  # of Newton's steps, from one to the next, where there are saddles
_SMALL = 4096  # entries of y: up to this many, passes cost less than the calls themselves

_LOWER, _ADJOINT, _DONE = range(3)  # what the next correction is for


class Learned(NamedTuple):
    """The carry of `Implicit`."""

    pairs: Pairs | None
    """(p, H p) of the CG steps so far; None if the problem has a preconditioner of its own."""
    relation: Scalar
    """|d + s| / |d - d_last| at the last x: how small errors must be beside corrections."""
    probe: PyTree
    """The state of the power method if the lower level has a regularizer, else None."""


class _Correction(NamedTuple):
    step: PyTree
    size: Scalar
    left: Scalar
    residual: Scalar
    cg: Krylov
    saddle: Bool[Array, ""]  # whether the step is one of y and leads away from a saddle


class _At(NamedTuple):
    """The corrections so far."""

    phase: Int[Array, ""]
    found: Evaluation  # the evaluation at x, or still that of the last x
    lower: Lower
    before: PyTree  # the d of the round before, or of the last x
    sizes: tuple[Scalar, Scalar]  # of the largest corrections of y and of v in this round
    left: tuple[Scalar, Scalar]  # the errors left in them
    accuracy: Scalar  # of the corrections of this round
    longest: Scalar  # the longest CG step, an estimate of 1 / lambda_min(MH)
    length: Scalar  # of the last step of y
    going: Bool[Array, ""]  # whether that was about as long as the one before it
    tiny: Bool[Array, ""]  # and whether it changed no more than half of its digits
    rounds: Int[Array, ""]
    newton: Int[Array, ""]


class Implicit(ControlledHypergradient):
    r"""$d = f_x - g_{xy} v$, $g_{yy} v = f_y$ at $y \approx y^*(x)$, by Newton's method and preconditioned CG.

    Both solves continue until the estimate $E = (e_y/c_y + e_v/c_v)\,|d - d_{last}|$ of $|d - \nabla\Phi(x)|$ is small
    compared with $|d + s|$: e are the errors left in y and v, c the corrections made at this x, in the norm $\langle e,
    g_{yy} e\rangle^{1/2}$, in which nothing has a unit.

    **Arguments:**

    - `memory`: the maximal number of pairs (p, g_yy p) kept as a preconditioner; fewer if they would cost more than
      the products they save.
    - `inner_steps`: the maximal number of products with g_yy in one evaluation, in case the lower level cannot be
      solved.
    - `damping`: solve the lower level with $g + \tfrac{damping}{2} |y|^2$ instead of g, for a g that is convex but
      not strongly convex. Then y, the hypergradient and the certificate are those of this problem, not of yours.

    References: J. Nocedal, S. Wright, "Numerical Optimization", 2006 (inexact Newton, CG and negative curvature);
    J. Morales, J. Nocedal, "Automatic preconditioning by limited memory quasi-Newton updating", 2000.

    >>> from proxbi.analytic import scalar_problem
    >>> problem, x = scalar_problem(), jnp.array(3.0)
    >>> hypergradient = Implicit()
    >>> found = hypergradient(problem, x, hypergradient.init(problem, x, jnp.array(0.0)), jnp.array(0.0), 0.1)
    >>> print(found.grad, found.error <= 0.1)
    1.0 True
    """

    memory: int = eqx.field(static=True, default=_MEMORY)
    inner_steps: int = eqx.field(static=True, default=_INNER_STEPS)
    damping: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.damping is not None:
            _check.positive("damping", _check.as_float(self.damping))
        _check.positive_int("memory", self.memory)
        _check.positive_int("inner_steps", self.inner_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> Evaluation:
        known, problem = unknown(x, y, None), ridged(problem, self.damping)
        own = problem.lower_regularizer is None and problem.preconditioner(x, y) is not None
        pairs = None if own else _lbfgs.empty(ravel_pytree(y)[0], self._room(problem, x, y))
        first = max(_FIRST, float(jnp.finfo(known.value.dtype).eps) ** 0.5)
        return known._replace(carry=Learned(pairs, jnp.full_like(known.value, first), first_probe(problem, y)))

    def _room(self, problem: Problem, x: PyTree, y: PyTree) -> int:
        """How many pairs are worth their cost: as many as y can use, but costing no more than a product."""
        size = sum(leaf.size for leaf in jax.tree.leaves(y))
        room = min(self.memory, max(_LEAST_MEMORY, size // _USEFUL))
        if size > _SMALL:
            room = min(room, int(_work(problem, x, y) / (_PASSES * size)))
        return max(1, room)  # at least one: it gives the scale of M

    def __call__(
        self, problem: Problem, x: PyTree, last: Evaluation, subgradient: PyTree, accuracy: Scalar
    ) -> Evaluation:
        accuracy, problem = jnp.asarray(accuracy, last.value.dtype), ridged(problem, self.damping)

        def correct(at: _At) -> _At:
            y, v, counts, pairs = at.found.y, at.found.v, at.found.counts, at.found.carry.pairs
            here, adjoint = linearised(problem, x, at.lower), at.phase == _ADJOINT

            def of_v() -> tuple[PyTree, _Upper]:
                value, (upper_x, upper_y) = here.upper()
                residual = _tree.subtract(upper_y, here.product(v))
                return residual, (value.astype(accuracy.dtype), upper_x, _tree.norm(upper_y))

            def of_y() -> tuple[PyTree, _Upper]:
                return _tree.scale(-1, at.lower.slope), (at.lower.level, _tree.zeros_like(x), at.lower.level)

            rhs, upper = jax.lax.cond(adjoint, of_v, of_y)
            precondition = _preconditioner(problem.preconditioner(x, y), pairs)
            left = self.inner_steps - counts.hvp
            steps = jnp.where(at.lower.unsettled, jnp.minimum(left, _UNSETTLED_STEPS), left)
            e = _correction(here.product, rhs, at, adjoint, precondition, steps)
            if problem.lower_regularizer is None:
                e = _leaving(e, at, adjoint)
            found = at.found._replace(
                margin=margin(problem, x, at.lower),
                counts=counts + Counts(hvp=e.cg.matvecs) + here.made,
                carry=at.found.carry._replace(pairs=e.cg.observed),
                saddles=at.found.saddles + e.saddle.astype(jnp.int32),
            )
            at = at._replace(found=found, longest=jnp.maximum(at.longest, e.cg.longest))
            return jax.lax.cond(
                adjoint & ~e.saddle,
                lambda: self._judged(_after_adjoint(at, e, upper, here), last, subgradient, accuracy),
                lambda: _after_newton(problem, x, at, e),
            )

        first = _start(problem, x, last, jnp.clip(_AIM * accuracy * last.carry.relation, _TIGHTEST, _LOOSEST))
        return jax.lax.while_loop(lambda at: at.phase != _DONE, correct, first).found

    def _judged(self, at: _At, last: Evaluation, subgradient: PyTree, accuracy: Scalar) -> _At:
        """After a round: done, or another round of both solves, as much more accurate as the error requires."""
        found, grad = at.found, at.found.grad
        gap, change = _tree.norms(_tree.axpy(1, subgradient, grad), _tree.subtract(grad, last.grad))
        # A residual that large makes v, and with it d and the value, meaningless, whatever the energies say.
        rough = (found.error > accuracy * gap) | (found.adjoint_residual > _LARGEST_RESIDUAL)
        possible = (at.rounds < _MOST_ROUNDS) & (found.counts.hvp < self.inner_steps)
        more = (found.outcome == Outcome.OK) & rough & possible
        relation = jnp.where(found.outcome == Outcome.OK, ratio(gap, change, 1.0), found.carry.relation)
        # v = 0 has a residual of 1: anything worse is not a solution.
        ended = jnp.where(found.adjoint_residual > 1, int(Outcome.UNSOLVED), int(Outcome.ROUGH))
        outcome = jnp.where(rough & ~more & (found.outcome == Outcome.OK), ended, found.outcome)
        return at._replace(
            phase=jnp.where(more, _LOWER, _DONE).astype(jnp.int32),
            found=found._replace(outcome=outcome.astype(jnp.int32), carry=found.carry._replace(relation=relation)),
            before=_tree.where(more, found.grad, at.before),
            sizes=_tree.where(more, _tree.zeros_like(at.sizes), at.sizes),
            accuracy=jnp.clip(_AIM * ratio(accuracy * gap, found.error, 1.0), _TIGHTEST, _LOOSEST),
        )


def _start(problem: Problem, x: PyTree, last: Evaluation, accuracy: Scalar) -> _At:
    lower, probe, cost = look(problem, x, last.y, last.carry.probe)
    zero, none = jnp.zeros_like(accuracy), jnp.int32(0)
    finite = jnp.isfinite(lower.level) & jnp.isfinite(lower.residual)
    outcome = jnp.where(finite, int(Outcome.OK), int(Outcome.NONFINITE)).astype(jnp.int32)
    found = last._replace(y=lower.y, outcome=outcome, lower_residual=lower.residual, error=zero)
    return _At(
        phase=jnp.where(finite, jnp.where(lower.residual == 0, _ADJOINT, _LOWER), _DONE).astype(jnp.int32),
        found=found._replace(counts=jax.tree.map(jnp.int32, cost), carry=last.carry._replace(probe=probe)),
        lower=lower,
        before=last.grad,
        sizes=(zero, zero),
        left=(zero, zero),
        accuracy=accuracy,
        longest=zero + 1,
        length=zero,
        going=jnp.asarray(False),
        tiny=jnp.asarray(False),
        rounds=none,
        newton=none,
    )


def _correction(
    hvp: Matvec, rhs: PyTree, at: _At, adjoint: Array, precondition: Matvec, steps: Int[Array, ""]
) -> _Correction:
    """e with H e = rhs, until its error is at most the accuracy times the larger of |e|_H and earlier corrections. If y
    is good enough already, no product is computed, and v is next.
    """
    scale, pairs = _tree.norm(rhs), at.found.carry.pairs
    unit = jnp.where(scale > 0, scale, 1)
    known = jnp.where(adjoint, at.sizes[1], at.sizes[0]) / unit

    convex = ~adjoint & (at.found.saddles == 0)
    beyond = jnp.where(convex, jnp.maximum(at.newton - _PATIENCE, 0), 0).astype(scale.dtype)

    def left(cg: Krylov) -> Scalar:
        return jnp.sqrt(jnp.maximum(cg.decrease, 0) * jnp.where(cg.iterations > 0, cg.longest, at.longest))

    def enough(cg: Krylov) -> Array:
        of_y = (cg.iterations == 0) & ~adjoint
        small = left(cg) <= jnp.where(of_y, _SLACK, 0.5**beyond) * at.accuracy * jnp.maximum(jnp.sqrt(cg.energy), known)
        # If steps are in the last digits and no longer help, only rounding is left.
        rounded = of_y & at.tiny & (unit * left(cg) > 0.5 * at.left[0])
        return (small & ~(of_y & (at.lower.shortened | at.going))) | rounded

    def observe(pairs: Pairs | None, p: PyTree, product: PyTree, curvature: Scalar, good: Array) -> Pairs | None:
        if pairs is None:
            return None
        return _lbfgs.push(pairs, ravel_pytree(p)[0], ravel_pytree(product)[0], curvature, good)

    last, unit = conjugate_gradients(
        hvp, rhs, None, enough, steps=steps, precondition=precondition, observe=observe, observed=pairs, verify=False
    )
    step, size = _tree.scale(unit, last.v), unit * jnp.sqrt(last.energy)
    return _Correction(step, size, unit * left(last), unit * last.size, last, jnp.asarray(False))


def _leaving(e: _Correction, at: _At, adjoint: Array) -> _Correction:
    """If CG met negative curvature: a step of y along it, and along the part of Newton's step found so far. g falls
    along the p of Newton's equation. At a saddle it falls both ways along that of the adjoint equation, and f along -p.
    Where there are saddles, Newton's steps grow slowly, as curvature is near 0 around them.
    """
    p = e.cg.direction
    # Curvature this close to 0 may be rounding: then there is no saddle, and nothing to gain along p.
    clear = e.cg.cosine < -(float(jnp.finfo(e.size.dtype).eps) ** _CLEAR)
    saddle = clear & (e.cg.status == int(LinearStatus.NEGATIVE_CURVATURE))
    wild = ~adjoint & (at.found.saddles > 0) & (at.newton > 0)

    def left() -> PyTree:
        size, newton, y = _tree.norms(p, e.step, at.found.y)
        far = jnp.maximum(_ESCAPE * y, _GROWTH * at.lower.part * at.length)
        far = jnp.where(far > 0, far, 1)
        kept = jnp.where(adjoint, 0, jnp.where(newton > far, ratio(far, newton), 1))
        along = jnp.where(saddle, jnp.where(adjoint, -1, 1) * ratio(far, size), 0)
        return _tree.axpy(along, p, _tree.scale(kept, e.step))

    return e._replace(step=jax.lax.cond(saddle | wild, left, lambda: e.step), saddle=saddle)


def _after_newton(problem: Problem, x: PyTree, at: _At, e: _Correction) -> _At:
    """y after a Newton step, or unchanged if it was good enough and no product was computed."""
    needless = (e.cg.matvecs == 0) & (e.cg.status == int(LinearStatus.OK)) & ~at.lower.unsettled
    new = advance(problem, x, at.lower, e.step, ~needless)
    step, size = new.length, _tree.norm(at.found.y)
    eps = float(jnp.finfo(step.dtype).eps)
    # On the way to the active set a face may be flat, or not worth an accurate solve.
    flat = e.cg.status == int(LinearStatus.NEGATIVE_CURVATURE)
    on_the_way = at.lower.unsettled | (e.saddle if problem.lower_regularizer is None else flat)
    ended = needless | ((step <= LAST_DIGITS * eps * size) & ~(new.unsettled | on_the_way))
    finite = jnp.isfinite(new.level) & jnp.isfinite(new.residual) & jnp.isfinite(step)
    most = jnp.where(at.found.saddles > 0, _AMONG_SADDLES, 1) * _MOST_NEWTON_STEPS
    given_up = (at.newton + 1 >= most) | new.failed
    status = jnp.where(on_the_way, int(LinearStatus.OK), e.cg.status)
    unsolved = ((status == int(LinearStatus.BUDGET)) | given_up) & ~ended
    outcome = jnp.where(finite, _broken(status), int(Outcome.NONFINITE))
    outcome = jnp.where((outcome == Outcome.OK) & unsolved, int(Outcome.UNSOLVED), outcome).astype(jnp.int32)
    good = outcome == Outcome.OK
    return at._replace(
        phase=jnp.where(good, jnp.where(ended, _ADJOINT, _LOWER), _DONE).astype(jnp.int32),
        found=at.found._replace(
            y=_tree.where(good, new.y, at.found.y),
            lower_residual=new.residual,
            outcome=outcome,
            counts=at.found.counts + new.counts,
        ),
        lower=new,
        # A correction on a wrong face, or one that was rejected, says nothing about the change of d.
        sizes=(jnp.where(on_the_way | new.unsettled, 0, jnp.maximum(at.sizes[0], e.size)), at.sizes[1]),
        left=(jnp.where(needless, e.left, e.size), at.left[1]),
        newton=at.newton + 1,
        length=jnp.where(needless, at.length, step),
        going=~needless & (at.newton > 0) & (step > _SHRINKS * at.length) & (problem.lower_regularizer is None),
        tiny=jnp.where(needless, at.tiny, step <= eps**0.5 * size),
    )


_Upper = tuple[Scalar, PyTree, Scalar]
"""f, f_x and |f_y|."""


def _after_adjoint(at: _At, e: _Correction, upper: _Upper, here: Linearised) -> _At:
    """v with its correction, the hypergradient, and its error."""
    value, upper_x, size = upper
    v = _tree.axpy(1, e.step, at.found.v)
    implicit = here.cross(here.project(v))
    grad = _tree.subtract(upper_x, implicit)
    sizes, left = (at.sizes[0], jnp.maximum(at.sizes[1], e.size)), (at.left[0], e.left)
    change, direct, indirect = _tree.norms(_tree.subtract(grad, at.before), upper_x, implicit)
    error = (ratio(left[0], sizes[0]) + ratio(left[1], sizes[1])) * change
    found = at.found._replace(
        v=v,
        grad=grad,
        value=value - _tree.dot(v, at.lower.slope),
        # A round leaves at least this part of the error before it: its corrections are not more accurate.
        error=jnp.maximum(error, at.accuracy * at.found.error),
        value_error=left[0] * (left[1] + 0.5 * ratio(sizes[1], sizes[0]) * left[0]),
        terms=direct + indirect,
        adjoint_residual=ratio(e.residual, size),
        outcome=jnp.where(_tree.all_finite((grad, value)), _broken(e.cg.status), int(Outcome.NONFINITE)).astype(
            jnp.int32
        ),
        counts=at.found.counts + Counts(grad_upper=1, hvp=1) + here.counts,
    )
    return at._replace(found=found, sizes=sizes, left=left, rounds=at.rounds + 1)


def _broken(status: Int[Array, ""]) -> Int[Array, ""]:
    """The outcome of a linear solve."""
    broken = [status == int(LinearStatus.NEGATIVE_CURVATURE), status == int(LinearStatus.NONFINITE)]
    return jnp.select(broken, [int(Outcome.NEGATIVE_CURVATURE), int(Outcome.NONFINITE)], int(Outcome.OK))


def _preconditioner(own: Matvec | None, pairs: Pairs | None) -> Matvec:
    """The problem's own preconditioner, or the learned one."""
    if pairs is None:
        return own or (lambda r: r)

    def learned(r: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(r)
        return unravel(pairs.precondition(flat))

    return learned


def _work(problem: Problem, x: PyTree, y: PyTree) -> float:
    """The operations of one product with g_yy, as the compiler counts them before it optimises."""
    shapes = jax.eval_shape(lambda *trees: trees, problem, x, y, y)
    counted = jax.jit(lambda p, x, y, u: p.hvp(x, y)(u)).lower(*shapes).cost_analysis()
    return float((counted or {}).get("flops", 0.0))
