r"""Step sizes where none are given: two bounds from curvatures, and one number that the run itself adjusts.

**Bounds, from batches.** A step along the gradient of a batch is stable up to 2 over the largest curvature of that
batch. Power iterations on a few batches give L, the largest curvature of g in y on any of them, and D, that of
d = f_x - g_xy v in x while y and v stay. With `caution` = 1, or 1/3 for SAGA's tables,

    a = caution / L   for y and v,          b <= caution / D   for x.

Both are looked at again whenever x has gone as far as l, a tenth of its length: g may become more curved (penalties e^x
that noise drives up). In between, y and v that grow along an eigenvector turn v into that direction, and
|g_yy v| / |v|, which each step computes, is the curvature there: a is at most its inverse. No step of x is longer than
sqrt(r) l.

**Why D is not all.** y and v follow x, at the rate r = a m, with m the curvature that the adjoint equation meets,
<v, g_yy v> / <v, v>. What their change adds to the curvature of Phi, C, therefore acts late. With D = 0 and one m

    x' = -b C v,    v' = r (y - v),    y' = r (x - y),     with the characteristic polynomial  s (s + r)^2 + b C r^2,

is stable for b C < 2 r only. A bound by this rule was six times too short (quadratics, 50 unknowns): C from 512 rows
is twice too large, as noise adds to g_xy and to the inverse of g_yy; m, met by v, is near the smallest curvature while
what follows x has many; and D damps. It is a bound for the worst direction, which the run may never meet.

**So b is adjusted by what the run shows.** Let S be the way of x over a window of w steps that ends in x, and S' that
over the next. By the sum of directions Delta, S = -b Delta, and S' is about -b w grad Phi(x), so that

    d Phi(x) / d log b = -b <grad Phi(x), Delta> = <grad Phi(x), S> ~ -<S', S> / (b w) :

a longer step would have gained where <S, S'> > 0, a shorter one where it is negative; exact line searches end with
<S, S'> = 0. After each window b is multiplied by 2^cos(S, S'). Both ends of the spectrum are then served: what is slow
keeps its direction and makes b grow, what oscillates makes it shrink, and in balance both decay at one rate. Where
noise is all, S and S' are independent or, as x is pulled back, opposed: b shrinks, as it should (Pflug's test). This is
hypergradient descent on log b (Almeida et al. 1998; Baydin et al. 2018), with windows in the place of steps.

A window must outlast the lag: `_TURNS` / r steps. And it must average the noise, which tables remember for an epoch: a
quarter of one, or all of it where x has an entry for each row, as each moves once in an epoch. (So nothing there is
faster than a window, and D needs no bound of its own.)

The first b is the longer of two that do no harm: the one that moves x by l in a window, and b = r / (2 C), with C the
change of the hypergradient on a few batches along itself. The curvature of Phi on n of N rows with entries of their own
is N / n times that on all rows, and b is multiplied by N / n.

**Networks.** Where an optimizer moves y there is no y* to solve for on a few batches, and v says nothing before y is
trained a little. So x waits for a window, and the first b is the one that would have moved it by l along the directions
of that window. With entries for each row a window is an epoch, and an entry moves by a tenth in it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.hypergradient import AID
from proxbi.hypergradient._controlled import ratio
from proxbi.linear import CG
from proxbi.lower import AcceleratedGradient
from proxbi.problem import Counts, Problem, on_batches
from proxbi.rows import ArrayRows, Batch, Rows, Sampling

if TYPE_CHECKING:
    from proxbi.solvers.stochastic._base import OnBatches

DEFAULT_BATCH = 64  # rows, where none are given; fewer keep a core no busier
BATCHES = 8  # that curvatures are learned from
_POWERS, _MORE_POWERS = 8, 3  # iterations from a random direction, and from the one found last
_TURNS = 4.0  # tried on quadratics: 4 and 8 did alike, 2 failed once, 1 often
_EPOCH_PART = 0.25  # of an epoch, the shortest window; without it b follows the noise of SAGA
_PROBE = 0.1  # l, relative to the length of x, or of a vector of ones
_CALM = 0.5  # b C / r of the first b: a quarter of what is stable
_SOLVE = 0.1  # accuracy of y and v for the first b, which is adjusted anyway
_MOST = 200  # gradients, and products
_SLOWEST = 1e-4  # r, for windows that end
_SEED = 0xB5297A4D  # of the batches looked at: they are the same in all runs, which may be resumed


class Path(NamedTuple):
    """Where the window began, and the way of x over the one before; while x waits, the sum of directions."""

    begun: Int[Array, ""]
    place: PyTree
    last: PyTree


class Looked(NamedTuple):
    """Where curvatures were last looked at, and the directions of the largest ones."""

    place: PyTree
    lower: PyTree
    outer: PyTree


class Scale(NamedTuple):
    """Step sizes of y, v and x, and what adjusts them."""

    lower: Scalar
    adjoint: Scalar
    outer: Scalar
    ceiling: Scalar
    """The longest stable step size of x, `caution` / D; infinite where the step size was given."""
    radius: Scalar
    """The longest step of x; infinite likewise."""
    follow: Scalar
    """r, the rate at which y and v follow x."""
    window: Int[Array, ""]
    """Steps after which that of x is adjusted."""
    path: Path | None
    """None where the step size of x was given."""
    looked: Looked | None
    """None where both were."""

    def within(self, slope: Scalar) -> "Scale":
        """With a step along a direction of this length that is no longer than the radius."""
        far = self.outer * slope > self.radius
        return self._replace(outer=jnp.where(far, self.radius / jnp.where(far, slope, 1), self.outer))

    def no_stiffer_than(self, curvature: Scalar) -> "Scale":
        """With steps of y and v that are stable where this curvature of g was met."""
        longest = 1 / jnp.where(curvature > 0, curvature, jnp.finfo(curvature.dtype).tiny)
        return self._replace(lower=jnp.minimum(self.lower, longest), adjoint=jnp.minimum(self.adjoint, longest))

    def adjusted(self, x: PyTree, direction: PyTree, number: Int[Array, ""]) -> "Scale":
        """With the step size of x as the last two windows have it, where one ends with this x, before step `number`;
        `direction` is that of the last step.
        """
        if self.path is None:
            return self
        waits = self.outer == 0
        path = self.path._replace(last=_tree.axpy(jnp.where(waits, 1, 0), direction, self.path.last))

        def ended() -> tuple[Scalar, Path]:
            way = _tree.where(waits, _tree.scale(-self._first(x, path.last), path.last), _tree.subtract(x, path.place))
            cosine = ratio(_tree.dot(way, path.last), _tree.norm(way) * _tree.norm(path.last))
            outer = jnp.where(waits, self._first(x, path.last), self.outer * 2**cosine)
            return jnp.minimum(outer, self.ceiling), Path(number, x, way)

        outer, path = jax.lax.cond(number - path.begun >= self.window, ended, lambda: (self.outer, path))
        return self._replace(outer=outer, path=path)

    def _first(self, x: PyTree, directions: PyTree) -> Scalar:
        """The step size that would have moved x by l along this sum of directions; 0, to wait on, where that is 0."""
        return ratio(radius_at(x), _tree.norm(directions)).astype(self.outer.dtype)


def radius_at(x: PyTree) -> Scalar:
    """l: how far from x curvatures are taken to be those at x."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(x))
    return _PROBE * jnp.maximum(_tree.norm(x), entries**0.5)


def learned(solver: "OnBatches", problem: Problem, x: PyTree, y: PyTree) -> tuple[Scale, Counts]:
    """The steps that were given, and the others as derived above, with what learning them cost."""
    dtype, counts = jax.tree.leaves(x)[0].dtype, jax.tree.map(jnp.int32, Counts())
    given = [getattr(solver, name, None) for name in ("lower_step_size", "step_size")]
    infinite = jnp.asarray(jnp.inf, dtype)
    lower, outer = (infinite if size is None else jnp.asarray(size, dtype) for size in given)
    scale = Scale(lower, lower, outer, infinite, infinite, jnp.ones((), dtype), jnp.int32(0), None, None)
    if None not in given:
        return scale, counts
    sample, v = sampled(solver, problem), _tree.zeros_like(y)
    scale = scale._replace(looked=Looked(x, _random_like(y), _random_like(x)))
    if given[1] is not None:
        return looked_at(solver, problem, scale, x, y, v, powers=_POWERS)
    scale = scale._replace(path=Path(jnp.int32(0), x, _tree.zeros_like(x)))
    if solver.lower_is_rough:
        scale, cost = looked_at(solver, problem, scale, x, y, v, powers=_POWERS)
        return scale._replace(outer=jnp.zeros((), dtype)), cost
    found, curvature, cost = _probed(sample, x, y)
    scale, more = looked_at(solver, problem, scale, x, found.y, found.aux, powers=_POWERS)
    size = _tree.norm(found.grad) * scale.window.astype(dtype)
    within_reach = ratio(radius_at(x), size, otherwise=1.0)
    stable = _CALM * scale.follow * ratio(jnp.ones_like(curvature), curvature) * _spread(sample, x)
    first = jnp.minimum(jnp.maximum(within_reach, stable), scale.ceiling)
    return scale._replace(outer=first.astype(dtype)), cost + more


def _probed(sample: Problem, x: PyTree, y: PyTree) -> tuple[Any, Scalar, Counts]:
    """The hypergradient at x, and its change per length over the way l along itself."""
    hypergradient, length = AID(AcceleratedGradient(_SOLVE, _MOST), CG(_MOST, _SOLVE)), radius_at(x)

    # A loop, as a hypergradient takes long to compile: at x first, then at x + l d / |d|.
    def probe(at: tuple[PyTree, PyTree, PyTree], _: None) -> tuple[Any, Any]:
        d, y, v = at
        there = hypergradient(sample, _tree.axpy(ratio(length, _tree.norm(d)), d, x), y, v)
        return (there.grad, there.y, there.aux), there

    both = jax.lax.scan(probe, (_tree.zeros_like(x), y, _tree.zeros_like(y)), None, length=2)[1]
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k], both) for k in range(2))
    curvature = _tree.norm(_tree.subtract(second.grad, first.grad)) / length
    return first, curvature, jax.tree.map(jnp.int32, sample.with_rows(first.counts + second.counts))


def _spread(sample: Problem, x: PyTree) -> float:
    """N / n where x has an entry for each lower row: in the mean over n of N rows each weighs N / n times as much."""
    return sample.lower_data.of / len(sample.lower_data) if entry_for_each_row(sample, x) else 1.0


def looked_at(
    solver: "OnBatches", problem: Problem, scale: Scale, x: PyTree, y: PyTree, v: PyTree, *, powers: int = _MORE_POWERS
) -> tuple[Scale, Counts]:
    """With the bounds at this point, and a step of x that keeps them, and falls where that of y falls."""
    sample, dtype = sampled(solver, problem), scale.outer.dtype
    found, counts = _curvatures(solver, sample, (x, y, v), scale, powers)
    caution = jnp.asarray(solver.caution, dtype)
    lower, outer = scale.lower, scale.outer
    if getattr(solver, "lower_step_size", None) is None:
        damping = jnp.asarray(getattr(solver, "damping", 0.0), dtype)
        lower = ratio(caution, found.lower.astype(dtype) + damping, otherwise=1.0)
    if scale.path is not None:
        ceiling = ratio(caution, found.outer.astype(dtype), otherwise=float("inf"))
        ceiling = jnp.full_like(ceiling, jnp.inf) if entry_for_each_row(sample, x) else ceiling
        energy = ratio(_tree.dot(v, sample.hvp(x, y)(v)), _tree.dot(v, v), otherwise=float("inf"))
        follow = jnp.clip(lower * energy.astype(dtype), _SLOWEST, 1)
        counts = counts + sample.with_rows(Counts(hvp=1))
        outer = jnp.minimum(outer * jnp.minimum(lower / scale.lower, 1), ceiling)
        scale = scale._replace(
            ceiling=ceiling,
            follow=follow.astype(dtype),
            radius=(jnp.sqrt(follow) * radius_at(x)).astype(dtype),
            window=jnp.ceil(jnp.maximum(_TURNS / follow, _least_window(solver, sample, x))).astype(jnp.int32),
        )
    looked = Looked(x, found.lower_direction, found.outer_direction)
    scale = scale._replace(lower=lower, adjoint=lower, outer=outer.astype(dtype), looked=looked)
    return scale, jax.tree.map(jnp.int32, counts)


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

    def on(part: Problem) -> _Curvatures:
        def direct(where: PyTree) -> PyTree:
            return _tree.subtract(part.grad_upper(where, y)[0], part.cross(where, y)(v))

        lower, lower_direction = _largest(part.hvp(x, y), looked.lower, powers)
        if scale.path is None:
            return _Curvatures(lower, jnp.zeros_like(lower), lower_direction, looked.outer)
        here = direct(x)

        def change(direction: PyTree) -> PyTree:
            return _tree.scale(1 / length, _tree.subtract(direct(_tree.axpy(length, direction, x)), here))

        outer, outer_direction = _largest(change, looked.outer, powers)
        return _Curvatures(lower, outer, lower_direction, outer_direction)

    calls = Counts(hvp=powers)
    if scale.path is not None:
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
    number = max(min(len(rows) for rows in levels.values()) // (solver.batch or DEFAULT_BATCH), 1)

    def stacked(rows: Batch) -> Batch:
        size = len(rows) // number
        return jax.tree.map(lambda leaf: leaf[: number * size].reshape(number, size, *leaf.shape[1:]), rows)

    return {name: stacked(rows) for name, rows in levels.items()}


def _largest(product: Any, start: PyTree, powers: int) -> tuple[Scalar, PyTree]:
    """The largest eigenvalue in size and its direction, by power iterations."""

    def power(_: Any, at: tuple[Scalar, PyTree]) -> tuple[Scalar, PyTree]:
        image = product(at[1])
        size = _tree.norm(image)
        return size, _tree.where(size > 0, _tree.scale(1 / jnp.where(size > 0, size, 1), image), at[1])

    return jax.lax.fori_loop(0, powers, power, (_tree.norm(start), start))


def _least_window(solver: "OnBatches", sample: Problem, x: PyTree) -> float:
    """Steps that average the noise, as derived above."""
    if not isinstance(sample.data, Rows):
        return 1.0
    epoch = sample.lower_data.of / (solver.batch or DEFAULT_BATCH)
    return epoch if entry_for_each_row(sample, x) else _EPOCH_PART * epoch


def entry_for_each_row(problem: Problem, x: PyTree) -> bool:
    """Whether all of x are entries for lower rows."""
    rows = problem.place.places_for(problem.lower_data.of) if isinstance(problem.data, Rows) else 0
    return rows > 0 and all(leaf.ndim > 0 and leaf.shape[0] == rows for leaf in jax.tree.leaves(x))


def _random_like(tree: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(_SEED), len(leaves))
    drawn = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    drawn_tree = jax.tree.unflatten(structure, drawn)
    return _tree.scale(1 / _tree.norm(drawn_tree), drawn_tree)
