r"""Step sizes from a few batches, where none are given; learned at the start, and again as x moves.

**y and v.** A step along the gradient of a batch is stable up to 2 / L, L the largest curvature of that batch. Power
iterations on g_yy of a few batches give the largest one met: a = 1 / L.

**x.** The curvature of Phi on those batches together has two parts. The direct one, D, is that of d = f_x - g_xy v in x
while y and v stay: a step of 1 / D would be stable. The other, C, is what the change of y and v with x adds. They
follow at the rate r = a m, with m the curvature that the adjoint equation meets, <v, g_yy v> / <v, v>. For small steps
b and D = 0 the three are close to

    x' = -b C v,    v' = r (y - v),    y' = r (x - y),     with the characteristic polynomial  s (s + r)^2 + b C r^2,

stable for b C < 2 r, and without oscillation up to b C = 4 r / 27. As C, from a few rows, is rather too large, and
where it acts alone some oscillation does no harm, b = 1 / (2 (D + C / r)): half of what D alone allows, and a quarter
of what C alone does. D and C are found by power iterations on differences of d and of the hypergradient. Beyond the way
l that they were measured on nothing is known about them. No step is longer than sqrt(r) l: with steps of l, y and v are
left behind where g changes with x (penalties e^x ran away upwards); with r l, by which x goes no further than l in the
time 1 / r that they take to follow, hyper-cleaning took twice as long.

**As x moves**, g may become more curved than it was where a was learned: with penalties e^x that noise drives up, y and
v oscillate, which drives them up further, without end. So L is looked at again whenever x has gone as far as l, and
where a falls, b falls with it. In between, y and v that grow along an eigenvector turn v into that direction, and
|g_yy v| / |v|, which each step computes, is the curvature there: a is at most its inverse.

**Entries of x for each row.** If each row has an entry of its own, the curvature of Phi on n of N rows is N / n times
that on all rows, as each row's weight in the mean is: b is multiplied by N / n.

**Again.** Curvatures are those at one x. They are learned again once the run is twice as long, and has cost `_PAYS`
times what learning did: a run of T steps learns about log2(T) times, for a small part of its rows.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.hypergradient import AID
from proxbi.linear import CG
from proxbi.lower import AcceleratedGradient
from proxbi.problem import Counts, Problem, on_batches
from proxbi.rows import ArrayRows, Batch, Rows, Sampling

if TYPE_CHECKING:
    from proxbi.solvers.stochastic._base import OnBatches

BATCHES = 8  # that the curvature is learned from
_POWERS = 10  # iterations: the largest eigenvalue to some percent, where the next one is half of it
_OUTER_POWERS = 2  # each takes a lower solve
_CALM = 0.5  # b (D + C / r), as derived above
_PROBE = 0.1  # length of the way along which C is measured, relative to that of x, or of a vector of ones
_SOLVE = 1e-2  # accuracy of y and v there: curvatures are wanted to some percent
_MOST = 200  # gradients, and products
_PAYS = 5  # rows that steps look at before steps are learned again, in units of those that learning looked at
_SEED = 0xB5297A4D  # of the batches looked at: they are the same in all runs, which may be resumed


class Scale(NamedTuple):
    """Step sizes of y, v and x."""

    lower: Scalar
    adjoint: Scalar
    outer: Scalar
    radius: Scalar
    """The longest step of x; infinite where the step size was given."""
    until: Int[Array, ""]
    """The number of the step before which all are learned again."""
    place: PyTree
    """The x at which L was last looked at."""

    def within(self, slope: Scalar) -> "Scale":
        """With a step along a direction of this length that is no longer than the radius."""
        far = self.outer * slope > self.radius
        return self._replace(outer=jnp.where(far, self.radius / jnp.where(far, slope, 1), self.outer))

    def no_stiffer_than(self, curvature: Scalar) -> "Scale":
        """With steps of y and v that are stable where this curvature of g was met."""
        longest = 1 / jnp.where(curvature > 0, curvature, jnp.finfo(curvature.dtype).tiny)
        return self._replace(lower=jnp.minimum(self.lower, longest), adjoint=jnp.minimum(self.adjoint, longest))


def radius_at(x: PyTree) -> Scalar:
    """How far from x the curvature is looked at."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(x))
    return _PROBE * jnp.maximum(_tree.norm(x), entries**0.5)


def unknown(x: PyTree) -> Scale:
    """Steps that are still to be learned."""
    zero = jnp.zeros((), jax.tree.leaves(x)[0].dtype)
    return Scale(zero, zero, zero, zero, jnp.int32(0), x)


def shortened(solver: "OnBatches", problem: Problem, scale: Scale, x: PyTree, y: PyTree) -> tuple[Scale, Counts]:
    """With a step of y that is no longer than L at this x allows, and a step of x that fell with it."""
    curvature, cost = _lower_curvature(sampled(solver, problem), x, y)
    stiffness = (curvature + _damping(solver, scale.lower.dtype)) * scale.lower
    part = solver.caution / jnp.maximum(stiffness, solver.caution)
    lower, adjoint, outer = (part * size for size in scale[:3])
    return scale._replace(lower=lower, adjoint=adjoint, outer=outer, place=x), jax.tree.map(jnp.int32, cost)


def _damping(solver: "OnBatches", dtype: Any) -> Scalar:
    return jnp.asarray(getattr(solver, "damping", 0.0), dtype)


def learned(
    solver: "OnBatches", problem: Problem, x: PyTree, y: PyTree, v: PyTree = None, number: Any = 0
) -> tuple[Scale, Counts]:
    """The steps that were given, and the others as derived above, before step `number`, with what that cost."""
    given, dtype = solver, jax.tree.leaves(x)[0].dtype
    lower, outer = getattr(given, "lower_step_size", None), getattr(given, "step_size", None)
    counts = jax.tree.map(jnp.int32, Counts())
    if lower is None or outer is None:
        sample = sampled(solver, problem)
        damping = _damping(solver, dtype)
        curvature, cost = _lower_curvature(sample, x, y)
        counts = counts + cost
        lower = solver.caution / (curvature + damping) if lower is None else lower
    radius = jnp.asarray(jnp.inf, dtype)
    if outer is None:
        outer, follow, cost = _outer_step(sample, x, y, v, jnp.asarray(lower, dtype))
        outer, counts = outer * _spread(sample, x), counts + cost
        radius = (jnp.sqrt(follow) * radius_at(x)).astype(dtype)
    lower = jnp.asarray(lower, dtype)
    counts = jax.tree.map(jnp.int32, counts)
    paid = _PAYS * counts.rows // solver.rows_of_step(problem)
    until = jnp.maximum(2 * number, number + paid + 1).astype(jnp.int32)
    return Scale(lower, lower, jnp.asarray(outer, dtype), radius, until, x), counts


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


def _lower_curvature(sample: Problem, x: PyTree, y: PyTree) -> tuple[Scalar, Counts]:
    """The largest curvature of g in y on any of the batches."""
    start = _random_like(y)

    def largest(problem: Problem) -> Scalar:
        product = problem.hvp(x, y)

        def power(_: Any, at: tuple[PyTree, Scalar]) -> tuple[PyTree, Scalar]:
            image = product(at[0])
            size = _tree.norm(image)
            return _tree.scale(1 / jnp.where(size > 0, size, 1), image), size

        return jax.lax.fori_loop(0, _POWERS, power, (start, _tree.norm(start)))[1]

    if not isinstance(sample.data, Rows):
        return largest(sample), Counts(hvp=_POWERS)
    rows = sample.lower_data
    parts = min(BATCHES, len(rows))
    cut: Batch = jax.tree.map(lambda leaf: leaf[: len(rows) // parts * parts].reshape(parts, -1, *leaf.shape[1:]), rows)
    sizes = jax.lax.map(lambda part: largest(on_batches(sample, lower=part)), cut)
    return jnp.max(sizes), Counts(hvp=_POWERS * parts, rows=_POWERS * (len(rows) // parts * parts))


class _Probed(NamedTuple):
    grad: PyTree
    y: PyTree
    v: PyTree
    direct: PyTree  # the direction in which d was changed most with y and v as they are, times D
    lagged: PyTree  # that in which their change did most, times C
    counts: Counts


def _outer_step(sample: Problem, x: PyTree, y: PyTree, v: PyTree, lower: Scalar) -> tuple[Scalar, Scalar, Counts]:
    """1 / (2 (D + C / r)), and r."""
    hypergradient = AID(AcceleratedGradient(_SOLVE, _MOST), CG(_MOST, _SOLVE))
    length = radius_at(x)

    def moved(direction: PyTree) -> PyTree:
        size = _tree.norm(direction)
        return _tree.axpy(length / jnp.where(size > 0, size, 1), direction, x)

    # Round 0 is at x, and its directions are d; those after it change d. One loop, as a hypergradient takes long to
    # compile.
    def probe(number: Any, at: _Probed) -> _Probed:
        first = number == 0

        def change(where: PyTree) -> PyTree:
            """Of d, with y and v as they are."""
            partial = _tree.subtract(sample.grad_upper(where, at.y)[0], sample.cross(where, at.y)(at.v))
            return _tree.scale(1 / length, _tree.subtract(partial, at.grad))

        where = _tree.where(first, x, moved(at.lagged))
        there = hypergradient(sample, where, at.y, at.v)
        total = _tree.scale(1 / length, _tree.subtract(there.grad, at.grad))
        counts = at.counts + jax.tree.map(jnp.int32, there.counts + Counts(grad_upper=2, cross=2))
        begun = _Probed(there.grad, there.y, there.aux, there.grad, there.grad, counts)
        lagged = _tree.subtract(total, change(where))
        return _tree.where(first, begun, at._replace(direct=change(moved(at.direct)), lagged=lagged, counts=counts))

    v, none = _tree.zeros_like(y) if v is None else v, _tree.zeros_like(x)
    start = _Probed(none, y, v, none, none, jax.tree.map(jnp.int32, Counts()))
    found = jax.lax.fori_loop(0, 1 + _OUTER_POWERS, probe, start)
    energy, size = _tree.dot(found.v, sample.hvp(x, found.y)(found.v)), _tree.dot(found.v, found.v)
    follow = jnp.clip(lower * energy / jnp.where(size > 0, size, 1), 0, 1)
    direct, lagged = _tree.norms(found.direct, found.lagged)
    curvature = direct * follow + lagged
    step = _CALM * follow / jnp.where(curvature > 0, curvature, 1)
    follow = jnp.where(follow > 0, follow, 1)  # 0 where v is: nothing has to be followed
    return jnp.where(step > 0, step, lower), follow, sample.with_rows(found.counts + Counts(hvp=1))


def _spread(sample: Problem, x: PyTree) -> float:
    """N / n where x has an entry for each lower row."""
    return sample.lower_data.of / len(sample.lower_data) if entry_for_each_row(sample, x) else 1.0


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
