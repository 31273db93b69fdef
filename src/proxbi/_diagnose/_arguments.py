"""Arguments, values and the domain of f, g and h."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import Array, PRNGKeyArray, PyTree

from proxbi import _compile, _tree, _validate
from proxbi._diagnose._page import Level, Look, leaves, level
from proxbi._diagnose._start import AWAY, Start, moved
from proxbi.hypergradient import AID
from proxbi.lower import GradientDescent
from proxbi.problem import Problem
from proxbi.solvers import ProxBiO

_MOVES = 8  # random moves by AWAY around y0 and y*, to see how near the end of the domain is
_NEAR_THE_END = (
    "f or g is NaN or infinite so close by: the end of the domain. Start further inside, and write logs and roots so "
    "that they exist wherever the solver may step."
)


def callable_at(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether f and g can be computed at all."""
    try:
        _validate.require_objectives(problem, x, y)
    except (TypeError, ValueError):
        return False
    return True


def arguments(start: Start) -> Iterator[Look]:
    problem, x, y = start.problem, start.x, start.y
    try:
        _validate.checked(problem, ProxBiO(AID(GradientDescent(1.0, steps=1)), 1.0), x, y)
        yield Look("arguments", "", "minimize accepts them.")
    except (TypeError, ValueError) as error:
        yield Look("arguments", "", f"minimize refuses them: {error}", Level.FAULT)
    for name, tree in (("x0", x), ("y0", y)):
        sizes = [float(_tree.norm(leaf)) for leaf in jax.tree.leaves(tree)]
        entries = sum(leaf.size for leaf in jax.tree.leaves(tree))
        of = f"; leaves of norm {min(sizes):.3g} to {max(sizes):.3g}" if len(sizes) > 1 else f" of norm {sizes[0]:.3g}"
        yield Look(name, f"{entries} {jax.tree.leaves(tree)[0].dtype} entries{of}", "as given.")


def ignored(start: Start) -> Iterator[Look]:
    """Arguments without which there is no bilevel problem."""
    problem, x, y = start.problem, start.x, start.y
    (upper_x, upper_y), (lower_x, lower_y) = (
        _validate._used(f, x, y) for f in (problem.value_upper, problem.value_lower)
    )
    prox_x, _ = _validate._used(lambda x, y: problem.lower_prox(x, y, 1.0), x, y)
    lower_x = [in_g or in_r for in_g, in_r in zip(lower_x, prox_x, strict=True)]
    swapped = "Are the arguments swapped? Both are called as (x, y)."
    if not any(upper_y):
        yield Look("upper", "", f"ignores y, so that nothing depends on the lower level. {swapped}", Level.FAULT)
    if not any(lower_x):
        yield Look("lower", "", f"ignores x, so that y* does not depend on it. {swapped}", Level.FAULT)
    idle = [keystr(path) for (path, _), used in zip(tree_leaves_with_path(y), lower_y, strict=True) if not used]
    if idle:
        verdict = f"ignores {leaves('y', idle)}: it has no unique minimiser. Leave this out of y, or add a ridge term."
        yield Look("lower", "", verdict, Level.FAULT)
    both = zip(tree_leaves_with_path(x), upper_x, lower_x, strict=True)
    idle = [keystr(path) for (path, _), in_upper, in_lower in both if not (in_upper or in_lower)]
    if idle:
        yield Look("upper and lower", "", f"both ignore {leaves('x', idle)}: leave this out of x.", Level.FAULT)


def values(start: Start) -> Iterator[Look]:
    problem, x, y = start.problem, start.x, start.y
    f, g = float(problem.value_upper(x, y)), float(problem.value_lower(x, y))
    outside = "Start at a y0 (or x0) inside of its domain."
    for name, value in (("f(x0, y0)", f), ("g(x0, y0)", g)):
        good = np.isfinite(value)
        yield Look(name, f"{value:.6g}", "finite." if good else f"not finite. {outside}", level(good))
    h = float(problem.regularizer.value(x))
    infeasible = "x0 is outside of its domain. Start at problem.regularizer.prox(x0, 1.0)."
    yield Look("h(x0)", f"{h:.6g}", "finite." if np.isfinite(h) else infeasible, level(bool(np.isfinite(h))))


def domain(start: Start) -> Iterator[Look]:
    places = {"near y0": start.y} | ({"near y*": start.solution} if start.solved else {})
    for name, y in places.items():
        lost = int(_lost(start.problem, start.x, y, jax.random.split(start.key, _MOVES)))
        verdict = _NEAR_THE_END if lost else "f and g are finite there."
        yield Look(name, f"{lost} of {_MOVES} moves by {AWAY:.0%} leave the domain", verdict, level(not lost))


@_compile.jit
def _lost(problem: Problem, x: PyTree, y: PyTree, keys: PRNGKeyArray) -> Array:
    def outside(key: PRNGKeyArray) -> Array:
        one, two = jax.random.split(key)
        at = moved(one, x), moved(two, y)
        values = jnp.stack([problem.value_upper(*at), problem.value_lower(*at)])
        return ~jnp.all(jnp.isfinite(values))

    return jnp.sum(jax.lax.map(outside, keys))
