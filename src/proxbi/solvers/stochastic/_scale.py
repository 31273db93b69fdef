r"""Step sizes if none are given: two bounds from curvatures, and one factor that the run adjusts.

**Bounds, from batches.** A step along the gradient of a batch is stable up to 2 / (the largest curvature of that
batch). Power iterations on a few batches give L, the largest curvature of g in y on any of them, and D, that of
d = f_x - g_xy v in x for fixed y and v. With `caution` = 1, or 1/3 for SAGA's tables,

    a = caution / L   for y and v,          b <= caution / D   for x.

Both are measured again once x has moved by l, a tenth of its norm, because g may have become more curved (penalties e^x
that noise drives up). Measuring costs at most one row in `_PAYS`. Between measurements, if y and v grow along an
eigenvector, v turns into its direction. Then |g_yy v| / |v|, which each step computes, is the curvature there, and a is
at most its inverse.

**How far x moves.** y and v lag behind x, and the tables, differences and averages of batches come from earlier x, up
to a horizon of H steps, an epoch. So x may move by at most `_REACH` l in H steps, and no single step is longer than
`_REACH` l / H. If x has an entry for each row, the steps of an epoch move different entries, and the bound is
`_REACH` l / sqrt(H). With few rows an epoch ends before y and v have followed. They follow at the rate r = a m, with
m = <v, g_yy v> / <v, v> the curvature along v. H is at least 1 / sqrt(r). (1 / r would be too cautious: only the
flattest directions are so slow. In hyper-cleaning of MNIST 1 / r is 35 epochs, as long as a whole run.)

**The first b.** Before y and v have followed, directions of x mean little. So x waits for H steps. The first b is the
one with which x would have moved by `_REACH` l along the directions of these steps. This needs no solve, so it also
works for networks and for rows on the host.

**b is adjusted by the path of x.** Let S be the displacement of x over a window of w steps that ends in x, and S' that
over the next window. With Delta the sum of directions, S = -b Delta, and S' is about -b w grad Phi(x), so that

    d Phi(x) / d log b = -b <grad Phi(x), Delta> = <grad Phi(x), S> ~ -<S', S> / (b w) :

a longer step would have been better if <S, S'> > 0, and a shorter one if it is negative. An exact line search has
<S, S'> = 0. After each window b becomes 2^cos(S, S') times the mean step size that the bounds allowed, or 4^cos if the
cosine is negative. Slow components keep their direction and make b grow, oscillating ones make it shrink; in balance
both decay at the same rate. If there is only noise, S and S' are independent or, as x is pulled back, opposed: then b
shrinks, as it should (Pflug's test). This is hypergradient descent on log b (Almeida et al. 1998; Baydin et al. 2018),
with windows instead of steps.

If b is too short, the run takes longer. If it is too long, x, y and v oscillate, and oscillations within a window do
not show in S. So b shrinks faster than it grows; and if directions are twice as long as in the window before, x
oscillates already, which counts as a cosine of -1. (Without these two rules, runs that had converged to rounding,
where cosines are random, went back to errors of 1e-2.)

A window must average the noise, which tables keep for an epoch: its length is a quarter of H, or all of H if x has an
entry for each row, since each entry moves once in an epoch. It should also be longer than the lag, `_TURNS` / r steps.
As r is an estimate, and a run may be shorter than that, a window is no longer than the run was before it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.hypergradient._controlled import ratio
from proxbi.problem import Counts, Problem, on_batches
from proxbi.rows import ArrayRows, Batch, Rows, Sampling

if TYPE_CHECKING:
    from proxbi.solvers.stochastic._base import OnBatches

BATCHES = 8  # that curvatures are learned from
_POWERS, _MORE_POWERS = 8, 2  # iterations from a random direction, and from the one found last
_PAYS = 10  # rows that steps look at before curvatures are measured again, in units of those that measuring took
_TURNS = 4.0  # windows of 2 to 8 / r did alike on six quadratics, of 1 / r not
_WINDOW_PART = 0.25  # of the horizon, the shortest window; without it b follows the noise of SAGA
_PROBE = 0.1  # l, relative to the length of x, or of a vector of ones
_REACH = 3.0  # l in a horizon: 0.3 of the length of x; the only value tried
_SHORTEST = 32  # steps of a horizon: in fewer, v does not follow at all
_LONGEST = 1000  # and where neither tables nor entries for each row need all of an epoch
_GROWS, _SHRINKS = 2.0, 4.0  # growing by the root of 2 instead, penalties far from x0 were not reached in time
_RISES = 2.0  # times the mean length of directions over the window before; 1.5 did alike
_SLOWEST = 1e-4  # r, for windows that end
_SEED = 0xB5297A4D  # of the batches looked at: they are the same in all runs, which may be resumed


class Path(NamedTuple):
    """The start of the window, and what was measured since."""

    begun: Int[Array, ""]
    used: Scalar
    """The sum of step sizes, after all bounds."""
    place: PyTree
    last: PyTree
    """The way of x over the window before; while x waits, the sum of directions."""
    slopes: Scalar
    """The sum of the lengths of directions."""
    before: Scalar
    """Their mean over the window before; 0 before the first."""


class Looked(NamedTuple):
    """The point where curvatures were last measured, and the directions of the largest ones."""

    until: Int[Array, ""]
    """The number of the step before which they are not measured again."""
    place: PyTree
    lower: PyTree
    outer: PyTree


class Scale(NamedTuple):
    """The step sizes of y, v and x, and the state of the rules that adjust them."""

    lower: Scalar
    adjoint: Scalar
    outer: Scalar
    ceiling: Scalar
    """The longest stable step size of x, `caution` / D; infinite where the step size was given."""
    radius: Scalar
    """The longest step of x; infinite likewise."""
    follow: Scalar
    """r, the rate at which y and v follow x."""
    horizon: Int[Array, ""]
    """H."""
    least: Int[Array, ""]
    """Steps of the shortest window."""
    path: Path | None
    """None where the step size of x was given."""
    looked: Looked | None
    """None where both were."""

    def faded(self, part: Scalar) -> "Scale":
        """With this fraction of the step sizes."""
        return self._replace(lower=part * self.lower, adjoint=part * self.adjoint, outer=part * self.outer)

    def within(self, slope: Scalar) -> "Scale":
        """With a step along a direction of this length that is no longer than the radius."""
        far = self.outer * slope > self.radius
        return self._replace(outer=jnp.where(far, self.radius / jnp.where(far, slope, 1), self.outer))

    def no_stiffer_than(self, curvature: Scalar) -> "Scale":
        """With steps of y and v that are stable for this curvature of g."""
        longest = 1 / jnp.where(curvature > 0, curvature, jnp.finfo(curvature.dtype).tiny)
        return self._replace(lower=jnp.minimum(self.lower, longest), adjoint=jnp.minimum(self.adjoint, longest))

    def following(self, curvature: Scalar) -> "Scale":
        """With the rate r at which y and v follow, for this curvature of g along v."""
        follow = jnp.clip(self.adjoint * curvature, _SLOWEST, 1)
        return self._replace(follow=follow.astype(self.follow.dtype))

    def adjusted(self, x: PyTree, direction: PyTree, used: Scalar, number: Int[Array, ""]) -> "Scale":
        """With the step size of x adjusted by the last two windows, if one ends at this x, before step `number`.
        `direction` and `used` are those of the last step.
        """
        if self.path is None:
            return self
        waits = self.outer == 0
        path = self.path._replace(
            used=self.path.used + used,
            slopes=self.path.slopes + _tree.norm(direction).astype(used.dtype),
            last=_tree.axpy(jnp.where(waits, 1, 0), direction, self.path.last),
        )

        def ended() -> tuple[Scalar, Path]:
            first = _first(x, path.last).astype(self.outer.dtype)
            way = _tree.where(waits, _tree.scale(-first, path.last), _tree.subtract(x, path.place))
            cosine = ratio(_tree.dot(way, path.last), _tree.norm(way) * _tree.norm(path.last))
            steps, zero = (number - path.begun).astype(used.dtype), jnp.zeros_like(used)
            slope = path.slopes / steps
            cosine = jnp.where((path.before > 0) & (slope > _RISES * path.before), -1, cosine)
            factor = jnp.where(cosine > 0, _GROWS, _SHRINKS) ** cosine
            outer = jnp.where(waits, first, path.used / steps * factor)
            return jnp.minimum(outer, self.ceiling), Path(number, zero, x, way, zero, slope)

        longest = jnp.maximum(jnp.ceil(_TURNS / self.follow).astype(jnp.int32), self.least)
        length = jnp.where(waits, self.horizon, jnp.clip(path.begun, self.least, longest))
        outer, path = jax.lax.cond(number - path.begun >= length, ended, lambda: (self.outer, path))
        return self._replace(outer=outer, path=path)


def _first(x: PyTree, directions: PyTree) -> Scalar:
    """The step size with which x would have moved by its reach along these directions; 0, which means to wait, if they
    are 0.
    """
    return ratio(_REACH * radius_at(x), _tree.norm(directions))


def radius_at(x: PyTree) -> Scalar:
    """l: the distance from x within which curvatures are assumed to be those at x."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(x))
    return _PROBE * jnp.maximum(_tree.norm(x), entries**0.5)


def learned(solver: "OnBatches", problem: Problem, x: PyTree, y: PyTree) -> tuple[Scale, Counts]:
    """The step sizes that were given, bounds on the others, and the cost of measuring these."""
    dtype, counts = jax.tree.leaves(x)[0].dtype, jax.tree.map(jnp.int32, Counts())
    given = [getattr(solver, name, None) for name in ("lower_step_size", "step_size")]
    infinite, zero, none = jnp.asarray(jnp.inf, dtype), jnp.zeros((), dtype), jnp.int32(0)
    lower = infinite if given[0] is None else jnp.asarray(given[0], dtype)
    outer = zero if given[1] is None else jnp.asarray(given[1], dtype)
    scale = Scale(lower, lower, outer, infinite, infinite, jnp.ones((), dtype), none, none, None, None)
    if None not in given:
        return scale, counts
    scale = scale._replace(looked=Looked(none, x, _random_like(y), _random_like(x)))
    if given[1] is None:
        scale = scale._replace(path=Path(none, zero, x, _tree.zeros_like(x), zero, zero))
    return looked_at(solver, problem, scale, (x, y, _tree.zeros_like(y)), none, powers=_POWERS)


def looked_at(
    solver: "OnBatches",
    problem: Problem,
    scale: Scale,
    point: tuple[PyTree, PyTree, PyTree],
    number: Int[Array, ""],
    *,
    powers: int = _MORE_POWERS,
) -> tuple[Scale, Counts]:
    """With the bounds measured at this point, before step `number`. The step of x keeps them, and shrinks if that of
    y shrinks.
    """
    x, sample, dtype = point[0], sampled(solver, problem), scale.outer.dtype
    found, counts = _curvatures(solver, sample, point, scale, powers)
    lower = scale.lower
    if getattr(solver, "lower_step_size", None) is None:
        damping = jnp.asarray(getattr(solver, "damping", 0.0), dtype)
        lower = ratio(jnp.asarray(solver.caution, dtype), found.lower.astype(dtype) + damping, otherwise=1.0)
    if scale.path is not None:
        ceiling = ratio(jnp.asarray(solver.caution, dtype), found.outer.astype(dtype), otherwise=float("inf"))
        scale = _bounded(solver, sample, scale, x)._replace(
            outer=jnp.minimum(scale.outer * jnp.minimum(lower / scale.lower, 1), ceiling).astype(dtype), ceiling=ceiling
        )
    counts = jax.tree.map(jnp.int32, counts)
    until = number + _PAYS * counts.rows // solver.rows_of_step(problem)
    looked = Looked(until.astype(jnp.int32), x, found.lower_direction, found.outer_direction)
    return scale._replace(lower=lower, adjoint=lower, looked=looked), counts


def _bounded(solver: "OnBatches", sample: Problem, scale: Scale, x: PyTree) -> Scale:
    """With the horizon, the shortest window and the longest step of x, as derived above."""
    of_rows = entry_for_each_row(sample, x)
    horizon = jnp.ceil(jnp.maximum(_epoch(solver, sample, x), scale.follow**-0.5))
    least = jnp.ceil((1.0 if of_rows else _WINDOW_PART) * horizon)
    steps = (horizon**0.5 if of_rows else horizon).astype(scale.outer.dtype)
    return scale._replace(
        radius=(_REACH * radius_at(x) / steps).astype(scale.outer.dtype),
        horizon=horizon.astype(jnp.int32),
        least=least.astype(jnp.int32),
    )


def _epoch(solver: "OnBatches", sample: Problem, x: PyTree) -> float:
    """The number of steps that use all lower rows once, within the limits of a horizon."""
    rows = sample.lower_data if isinstance(sample.data, Rows) else None
    steps = rows.of / (solver.rows_of(sample.data, "lower").batch) if rows is not None else 1.0
    needed = solver.reads_all_rows or entry_for_each_row(sample, x)
    return max(steps if needed else min(steps, _LONGEST), _SHORTEST)


def sampled(solver: "OnBatches", problem: Problem) -> Problem:
    """The problem on `BATCHES` batches, the same in each call."""
    data = problem.data
    if not isinstance(data, Rows):
        return problem
    batches = {}
    for level in ("upper", "lower"):
        if isinstance(getattr(data, level), ArrayRows):
            batches[level] = data.batch(level, sample_index(solver, data, level))
    return on_batches(problem, **batches)


def sample_index(solver: "OnBatches", data: Rows, level: Any) -> Any:
    """The rows of `BATCHES` batches, or all where these are fewer."""
    one = solver.rows_of(data, level)
    many = Sampling(min(BATCHES * one.batch, one.rows), one.rows)
    return many.index(jnp.full(2, _SEED, jnp.uint32), 0)


class _Curvatures(NamedTuple):
    """The largest curvatures on any batch, and their directions."""

    lower: Scalar
    outer: Scalar
    lower_direction: PyTree
    outer_direction: PyTree


def _curvatures(
    solver: "OnBatches", sample: Problem, point: tuple[PyTree, PyTree, PyTree], scale: Scale, powers: int
) -> tuple[_Curvatures, Counts]:
    """L and D; D only where x has a step to be learned."""
    x, y, v = point
    looked, length = scale.looked, radius_at(x)
    assert looked is not None
    # D is no bound where each entry moves once in an epoch: nothing there is faster than a window.
    bends = scale.path is not None and not entry_for_each_row(sample, x)

    def on(part: Problem) -> _Curvatures:
        def direct(where: PyTree) -> PyTree:
            return _tree.subtract(part.grad_upper(where, y)[0], part.cross(where, y)(v))

        lower, lower_direction = _largest(part.hvp(x, y), looked.lower, powers)
        if not bends:
            return _Curvatures(lower, jnp.zeros_like(lower), lower_direction, looked.outer)
        here = direct(x)

        def change(direction: PyTree) -> PyTree:
            return _tree.scale(1 / length, _tree.subtract(direct(_tree.axpy(length, direction, x)), here))

        outer, outer_direction = _largest(change, looked.outer, powers)
        return _Curvatures(lower, outer, lower_direction, outer_direction)

    calls = Counts(hvp=powers)
    if bends:
        calls = calls + Counts(grad_upper=powers + 1, cross=powers + 1)
    if not isinstance(sample.data, Rows):
        return on(sample), calls
    parts = _cut(solver, sample)
    number = len(jax.tree.leaves(parts)[0])
    each = jax.lax.map(lambda part: on(on_batches(sample, **part)), parts)
    stiffest, bent = jnp.argmax(each.lower), jnp.argmax(each.outer)
    found = _Curvatures(
        each.lower[stiffest],
        each.outer[bent],
        jax.tree.map(lambda leaf: leaf[stiffest], each.lower_direction),
        jax.tree.map(lambda leaf: leaf[bent], each.outer_direction),
    )
    first = on_batches(sample, **jax.tree.map(lambda leaf: leaf[0], parts))
    return found, jax.tree.map(lambda count: number * count, first.with_rows(calls))


def _cut(solver: "OnBatches", sample: Problem) -> dict[str, Batch]:
    """The rows of both levels in equally many batches."""
    levels = {"upper": sample.upper_data, "lower": sample.lower_data}
    number = max(min(len(rows) for rows in levels.values()) // solver.rows_of(sample.data, "lower").batch, 1)

    def stacked(rows: Batch) -> Batch:
        size = len(rows) // number
        return jax.tree.map(lambda leaf: leaf[: number * size].reshape(number, size, *leaf.shape[1:]), rows)

    return {name: stacked(rows) for name, rows in levels.items()}


def _largest(product: Any, start: PyTree, powers: int) -> tuple[Scalar, PyTree]:
    """The eigenvalue of largest magnitude and its direction, by power iterations."""

    def power(_: Any, at: tuple[Scalar, PyTree]) -> tuple[Scalar, PyTree]:
        image = product(at[1])
        size = _tree.norm(image)
        return size, _tree.where(size > 0, _tree.scale(1 / jnp.where(size > 0, size, 1), image), at[1])

    return jax.lax.fori_loop(0, powers, power, (_tree.norm(start), start))


def entry_for_each_row(problem: Problem, x: PyTree) -> bool:
    """Whether every entry of x belongs to a lower row."""
    rows = problem.place.places_for(problem.lower_data.of) if isinstance(problem.data, Rows) else 0
    return rows > 0 and all(leaf.ndim > 0 and leaf.shape[0] == rows for leaf in jax.tree.leaves(x))


def _random_like(tree: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(_SEED), len(leaves))
    drawn = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    drawn_tree = jax.tree.unflatten(structure, drawn)
    return _tree.scale(1 / _tree.norm(drawn_tree), drawn_tree)
