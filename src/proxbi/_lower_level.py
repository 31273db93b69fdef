r"""The lower level as an equation to solve and to differentiate: y*(x) = argmin_y g(x, y) + r_x(y), with or without r.

Without r the equation is g_y = 0. With r, let pi(x, z) = prox_{s r_x}(z) for some s > 0. As (z - pi) / s is in
dr_x(pi), the lower level is solved by y = pi(x, z) where Robinson's normal map vanishes,

    N(x, z) = g_y(x, pi(x, z)) + (z - pi(x, z)) / s = 0,     and   N in g_y(x, y) + dr_x(y)   at every z.

So |N| is to this lower level what |g_y| is to a smooth one: |y - y*| <= |N| / mu. With P = pi_z, which is symmetric
with 0 <= P <= 1 as the derivative of a prox, Q = pi_x, and H = g_yy at y,

    N_z = H P + (I - P) / s,     N_x = g_yx + (H - I / s) Q.

P is zero off the support (l1), across the face (boxes, simplices): only P N_z, on the range of P, has to be inverted,

    A = P H P + P (I - P) / s,    symmetric, positive definite on the range of P where H is on it:            (face)

the Hessian of the lower level along the active manifold. The derivative of y = pi(x, z(x)) with N(x, z(x)) = 0 makes

    grad Phi = f_x + Q'f_y - N_x'P v,     A v = P f_y,                                                     (adjoint)

(from N_z z' = -N_x and P N_z = A), and Phi ~ f(x, y) - <v, P N> up to second order. Only z, P and v depend on s; y, P v
and grad Phi do not. Without r it is the smooth case: P = I, Q = 0, A = H, N = g_y. So `Linearised` serves both, and the
same CG solves both: its residuals stay in the range of A.

**Newton's method** on N: A w = -P N gives the step e = P w within the face. A proximal gradient step from u = y + e,

    z' = u - s g_y(u),     y' = pi(z'),

then finds the active set anew. A step is accepted if g + r falls (`_SUFFICIENT`) and |N| does not jump. If two lengths
of e fail, the face is not the right one yet: accelerated proximal gradient steps (FISTA with restarts) replace it,
twice as many each time, so that the cost is never more than a few times that of the cheaper of the two methods.
(Bareilles, Iutzeler, Malick, "Newton acceleration on manifolds identified by proximal gradient methods", 2023.) s is
1 / |H| as estimated by the power method; it is halved if proximal gradient steps do not make g + r fall.

The active set is `unsettled` if a proximal gradient step from y would leave it: if that step, pi(z) - pi(z - s N), is
not s P N, its value on a fixed face. And the face is trusted only after a full Newton step on it has lowered |N| as
predicted: far from y*, a face that a short step does not leave may still be the wrong one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _tree
from proxbi._damped import MOST_TRIES, damped
from proxbi._tree import Scalar
from proxbi.linear import Matvec
from proxbi.problem import Counts, Problem

_POWER_STEPS = 5  # of the power method, for each evaluation: it continues where the last one ended
_SHORTEST, _LONGEST = 0.5, 1.3  # of s, in units of 1 / |H|: between these it is kept unchanged
_LENGTHS = (1.0, 0.3)  # of a Newton step, tried in turn
_FIRST_BURST, _LONGEST_BURST = 10, 1280  # of accelerated steps
_SUFFICIENT = 1e-4  # of the predicted decrease: Armijo's constant, the usual value
_JUMP = 10.0  # of |N|: a step that raises it so much follows a direction in which the face is flat
_SLIDES = 0.5  # of |N|: the most that a Newton step leaves on the right face, even if values hide the decrease
_ROUNDING = 10  # units of rounding by which values, and z, may be off
_MATCH = 0.1  # of s |P N|: the proximal gradient step may differ from it by so much on a curved face
_MOST_REFUSALS = 12  # of bursts, each with half the step size of the last


class Lower(NamedTuple):
    """A point of the lower level."""

    y: PyTree
    level: Scalar
    """g + r."""
    slope: PyTree
    """P N; g_y without r."""
    residual: Scalar
    """|N|: a bound of dist(0, g_y + dr)."""
    length: Scalar
    """Of the Newton step that led here, before it was shortened."""
    part: Scalar
    """Of that, which was accepted; 1 with r, where it does not matter."""
    calls: Int[Array, ""]
    """The number of gradients used."""
    shortened: Bool[Array, ""]
    """Whether it was. With r, also whether no Newton step has yet worked as predicted: then the face may be wrong."""
    unsettled: Bool[Array, ""]
    failed: Bool[Array, ""]
    """Whether no step was short enough."""
    z: PyTree = None
    step_size: Any = None
    """s."""
    burst: Any = None
    """The number of accelerated steps after the next rejection."""

    @property
    def counts(self) -> Counts:
        """The cost of the step that led here: with r, a prox with each gradient, and one for P."""
        return Counts(grad_lower=self.calls, prox_lower=0 if self.z is None else self.calls + 1)


class Linearised(NamedTuple):
    """The lower level and f at a point, to first order."""

    product: Matvec
    """w -> A w."""
    project: Matvec
    """w -> P w."""
    upper: Callable[[], tuple[Scalar, tuple[PyTree, PyTree]]]
    """f, f_x + Q'f_y and P f_y."""
    cross: Matvec
    """e -> N_x'e, for e = P v."""
    counts: Counts
    """The cost of `cross`."""
    made: Counts
    """The cost of making this: proxes, for P and Q."""


class Probe(NamedTuple):
    """The state of the power method."""

    direction: PyTree
    step_size: Scalar
    """s; 0 before it is known."""


def first_probe(problem: Problem, y: PyTree) -> Probe | None:
    """Where the power method starts: a vector without symmetries; None without r, which needs no step size."""
    if problem.lower_regularizer is None:
        return None
    waves = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), y)
    return Probe(waves, jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))))


def look(problem: Problem, x: PyTree, y: PyTree, probe: Probe | None) -> tuple[Lower, Probe | None, Counts]:
    """The lower level at y, or, with r, after a proximal gradient step from y; and the state of the power method."""
    zero, no = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))), jnp.asarray(False)
    if probe is None:
        level, slope = problem.value_and_grad_lower(x, y)
        start = Lower(y, level.astype(zero.dtype), slope, _tree.norm(slope), zero, zero + 1, jnp.int32(1), no, no, no)
        return start, None, Counts(grad_lower=1)
    probe = _probed(problem.hvp(x, y), probe)
    lower = _arrive(problem, x, y, probe.step_size, jnp.int32(_FIRST_BURST))
    return lower, probe, Counts(grad_lower=2, prox_lower=2, hvp=_POWER_STEPS)


def _probed(hvp: Matvec, probe: Probe) -> Probe:
    """A few steps of the power method; s changes only if it is far off, as v depends on it."""

    def power(_: Any, at: tuple[PyTree, Scalar]) -> tuple[PyTree, Scalar]:
        image = hvp(_tree.scale(1 / jnp.where(at[1] > 0, at[1], 1), at[0]))
        return image, _tree.norm(image)

    start = probe.direction, _tree.norm(probe.direction)
    direction, curvature = jax.lax.fori_loop(0, _POWER_STEPS, power, start)
    known = jnp.isfinite(curvature) & (curvature > 0)
    length = probe.step_size * curvature
    right = (length >= _SHORTEST) & (length <= _LONGEST)
    step_size = jnp.where(right, probe.step_size, 1 / jnp.where(known, curvature, 1))
    return Probe(_tree.where(known, direction, probe.direction), step_size)


def linearised(problem: Problem, x: PyTree, lower: Lower) -> Linearised:
    """A, and the two sides of (adjoint)."""
    y, hvp, cross = lower.y, problem.hvp(x, lower.y), problem.cross(x, lower.y)
    if problem.lower_regularizer is None:
        smooth = partial(problem.value_and_grad_upper, x, y)
        return Linearised(hvp, lambda v: v, smooth, cross, Counts(cross=1), Counts())
    s, project = lower.step_size, _projection(problem, x, lower)
    pull = jax.vjp(lambda at: problem.lower_prox(at, lower.z, s), x)[1] if problem.lower_moves else None

    def product(w: PyTree) -> PyTree:
        e = project(w)
        scaled = _tree.scale(1 / s, e)
        return _tree.subtract(scaled, project(_tree.subtract(scaled, hvp(e))))

    def upper() -> tuple[Scalar, tuple[PyTree, PyTree]]:
        value, (upper_x, upper_y) = problem.value_and_grad_upper(x, y)
        moved = upper_x if pull is None else _tree.axpy(1, pull(upper_y)[0], upper_x)
        return value, (moved, project(upper_y))

    def implicit(e: PyTree) -> PyTree:
        return cross(e) if pull is None else _tree.axpy(1, pull(_tree.axpy(-1 / s, e, hvp(e)))[0], cross(e))

    counts, made = Counts(cross=1, hvp=int(problem.lower_moves)), Counts(prox_lower=1 + int(problem.lower_moves))
    return Linearised(product, project, upper, implicit, counts, made)


def advance(problem: Problem, x: PyTree, lower: Lower, w: PyTree, wanted: Bool[Array, ""]) -> Lower:
    """The point after the Newton step with A w = -P N, or after its replacement; unchanged unless `wanted`."""
    if problem.lower_regularizer is None:
        new = damped(problem, x, lower.y, lower.level, lower.slope, w, wanted)
        shortened = new.tries > 1
        return Lower(
            new.y,
            new.level,
            new.gradient,
            _tree.norm(new.gradient),
            _tree.norm(w),
            new.length,
            new.tries,
            shortened,
            lower.unsettled,
            new.tries > MOST_TRIES,
        )
    return _advance_proximal(problem, x, lower, w, wanted)


def residual(problem: Problem, x: PyTree, y: PyTree) -> tuple[Scalar, Counts]:
    """|g_y| at y; with r, |N| after a proximal gradient step from y."""
    lower, _, counts = look(problem, x, y, first_probe(problem, y))
    return lower.residual, counts


def margin(problem: Problem, x: PyTree, lower: Lower) -> Scalar:
    """How far z is from the next change of the active set, relative to the size of z; infinite without r."""
    if problem.lower_regularizer is None:
        return jnp.full_like(lower.level, jnp.inf)
    size = _tree.norm(lower.z)
    distance = problem.lower_regularizer_at(x).margin(lower.z, lower.step_size)
    return (distance / jnp.where(size > 0, size, 1)).astype(size.dtype)


class _Tries(NamedTuple):
    at: Lower
    number: Int[Array, ""]
    calls: Int[Array, ""]
    step_size: Scalar
    good: Bool[Array, ""]


def _advance_proximal(problem: Problem, x: PyTree, lower: Lower, w: PyTree, wanted: Bool[Array, ""]) -> Lower:
    e, slope = _projection(problem, x, lower)(w), _tree.dot(lower.slope, w)
    eps = float(jnp.finfo(slope.dtype).eps)
    lengths = jnp.asarray(_LENGTHS, slope.dtype)
    most = len(_LENGTHS) + _MOST_REFUSALS

    def look_at(at: _Tries) -> _Tries:
        newton = at.number < len(_LENGTHS)
        length = jnp.where(newton, lengths[jnp.minimum(at.number, len(_LENGTHS) - 1)], 0)
        burst = jnp.where(newton, 0, lower.burst)
        u = _accelerated(problem, x, _tree.axpy(length, e, lower.y), at.step_size, burst)
        new = _arrive(problem, x, u, at.step_size, lower.burst)
        slides = new.residual <= _SLIDES * lower.residual
        rise = jnp.abs(lower.level) * jnp.where(slides, eps**0.5, _ROUNDING * eps)
        falls = new.level <= lower.level + _SUFFICIENT * length * slope + rise
        good = falls & (~newton | (new.residual <= _JUMP * lower.residual)) & jnp.isfinite(new.residual)
        shorter = jnp.where(good | newton, 1, 0.5) * at.step_size
        return _Tries(new, at.number + 1, at.calls + burst + 2, shorter, good)

    first = _Tries(lower, jnp.int32(0), jnp.int32(0), lower.step_size, ~wanted)
    last = jax.lax.while_loop(lambda at: ~at.good & (at.number < most), look_at, first)
    burst = last.number > len(_LENGTHS)
    new = _tree.where(last.good, last.at, lower)
    return new._replace(
        length=_tree.norm(e),
        calls=last.calls,
        shortened=new.shortened & ((last.number > 1) | new.unsettled | (new.residual > _SLIDES * lower.residual)),
        unsettled=burst | new.unsettled,
        failed=~last.good,
        burst=jnp.where(burst, jnp.minimum(2 * lower.burst, _LONGEST_BURST), lower.burst),
    )


def _arrive(problem: Problem, x: PyTree, u: PyTree, s: Scalar, burst: Int[Array, ""]) -> Lower:
    """The point that a proximal gradient step from u leads to."""
    z = _tree.axpy(-s, problem.grad_lower(x, u), u)
    y, project = jax.linearize(lambda at: problem.lower_prox(x, at, s), z)
    value, gradient = problem.value_and_grad_lower(x, y)
    normal = _tree.axpy(1 / s, _tree.subtract(z, y), gradient)
    slope = project(normal)
    onward = problem.lower_prox(x, _tree.axpy(-s, normal, z), s)
    off = _tree.subtract(_tree.subtract(y, onward), _tree.scale(s, slope))
    residual, left, size, mismatch = _tree.norms(normal, slope, z, off)
    rounded = s * residual <= _ROUNDING * float(jnp.finfo(s.dtype).eps) * size
    unsettled = ~rounded & (mismatch > _MATCH * s * left)
    level = (value + problem.lower_penalty(x, y)).astype(s.dtype)
    zero, no = jnp.zeros_like(s), jnp.asarray(False)
    return Lower(y, level, slope, residual, zero, zero + 1, jnp.int32(2), ~rounded, unsettled, no, z, s, burst)


def _projection(problem: Problem, x: PyTree, lower: Lower) -> Matvec:
    """P."""
    return jax.linearize(lambda z: problem.lower_prox(x, z, lower.step_size), lower.z)[1]


def _accelerated(problem: Problem, x: PyTree, y: PyTree, s: Scalar, steps: Int[Array, ""]) -> PyTree:
    """FISTA from y, started afresh where its momentum points uphill (O'Donoghue and Candes, 2015)."""

    def step(_: Any, at: tuple[PyTree, PyTree, Scalar]) -> tuple[PyTree, PyTree, Scalar]:
        ahead, before, age = at
        y = problem.lower_prox(x, _tree.axpy(-s, problem.grad_lower(x, ahead), ahead), s)
        change = _tree.subtract(y, before)
        age = jnp.where(_tree.dot(_tree.subtract(ahead, y), change) > 0, 0, age)
        return _tree.axpy(age / (age + 3), change, y), y, age + 1

    return jax.lax.fori_loop(0, steps, step, (y, y, jnp.zeros_like(s)))[1]
