"""Refuse a problem that cannot be solved as it was given, before anything is compiled, in words that name the
argument.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval
from jaxtyping import PyTree

from proxbi import _check, _compile
from proxbi._functions import written
from proxbi._place import HERE
from proxbi.problem import Problem
from proxbi.solvers import Solver, traced_step

_LARGE = 10_000_000  # bytes: from here on, copies of constants are felt, in memory and in the time to compile
_SWAPPED = "Are its arguments swapped? It is called as (x, y)."


def checked(
    problem: Problem, solver: Solver, x0: PyTree, y0: PyTree, *, anywhere: bool = False
) -> tuple[Problem, PyTree, PyTree, PyTree]:
    """The arguments with JAX arrays for leaves and the solver's first state, or an error that says which of them is
    wrong and why. `anywhere`: also for problems on a mesh.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a proxbi Problem, got {type(problem).__name__}.")
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be a proxbi Solver such as ProxBiO(...), got {type(solver).__name__}.")
    if problem.place is not HERE and not anywhere:
        raise TypeError("problem is on a mesh, which is for minimize alone: give the problem that shard was given.")
    problem, x0, y0 = problem.place.entered(problem, solver, x0, y0)
    x0, y0 = _check.float_tree("x0", x0), _check.float_tree("y0", y0)
    _require_one_dtype(x0, y0)
    problem = eqx.tree_at(
        lambda p: p.data, problem, _check.data_tree("data", problem.data), is_leaf=lambda d: d is None
    )
    require_objectives(problem, x0, y0)
    problem.check_start(x0, y0)
    _require_lower_regularizer(problem, x0, y0)
    _require_use(problem, x0, y0)
    _require_derivatives(problem, x0, y0)
    if problem.place is HERE:
        _warn_of_constants(problem, x0, y0)
    _require_same("regularizer", "prox", x0, lambda: problem.regularizer.prox(x0, 1.0))
    state = first_state(problem, solver, x0, y0)
    _require_same("solver", "step", state, lambda: traced_step(problem, solver, state, jax.random.key(0))[0])
    return problem, x0, y0, state


@_compile.jit  # operation by operation it takes several times as long
def first_state(problem: Problem, solver: Solver, x0: PyTree, y0: PyTree) -> PyTree:
    return problem.place.kept(solver.init(problem, x0, y0))


def _require_one_dtype(x: PyTree, y: PyTree) -> None:
    """Norms, steps and tolerances are of one precision."""
    named = [
        (name + jax.tree_util.keystr(path), leaf.dtype)
        for name, tree in (("x0", x), ("y0", y))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    for name, dtype in named:
        if dtype not in (jnp.float32, jnp.float64):
            raise TypeError(f"{name} is {dtype}: solvers need float32 or float64; convert it with .astype.")
        if dtype != named[0][1]:
            first, other = named[0]
            raise TypeError(f"{first} is {other}, but {name} is {dtype}: give all of x0 and y0 one dtype.")


def require_objectives(problem: Problem, x: PyTree, y: PyTree) -> None:
    """upper and lower must be functions of x and y, in this order, that return floating point scalars."""
    for name in ("upper", "lower"):
        names = _argument_names(getattr(problem, name))
        ordered = [argument for argument in ("x", "y", "data") if argument in names]
        if sorted(names) == sorted(ordered) and names != ordered:
            right = f"{name}({', '.join(ordered)})"
            raise TypeError(f"{name}({', '.join(names)}): its arguments are swapped: it is called as {right}.")
    for name, objective in (("upper", problem.value_upper), ("lower", problem.value_lower)):
        _require_scalar(name, objective, x, y, problem.data)


def _argument_names(objective: Any) -> list[str]:
    """The names of the arguments of what the user wrote."""
    try:
        return list(inspect.signature(written(objective)).parameters)
    except (TypeError, ValueError):  # a function that does not say
        return []


def _require_scalar(name: str, objective: Callable[..., Any], x: PyTree, y: PyTree, data: PyTree) -> None:
    try:
        # Not `objective` itself: JAX compares methods that it has seen, and so their arrays, which may be traced here.
        value = jax.eval_shape(lambda *at: objective(*at), x, y)
    except Exception as error:
        line, hints = _first_line(error), " ".join(_hints(error, objective, x, y, data))
        raise ValueError(f"{name} fails on the given x0, y0 and data: {line} {hints}".rstrip()) from error
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise ValueError(f"{name} must return a scalar, got {type(value).__name__}.")
    if shape != ():
        raise ValueError(f"{name} must return a scalar, got an array of shape {shape}; use jnp.sum or jnp.mean.")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{name} must return a floating point scalar, got {dtype}.")
    given = jax.tree.leaves(y)[0].dtype
    if jnp.finfo(dtype).bits < jnp.finfo(given).bits:
        raise TypeError(
            f"{name} returns {dtype}, where x0 and y0 are {given}: rounding would hide every small step. Compute it in "
            f"{given}, or give x0 and y0 as {dtype}."
        )


_TRACED = {
    jax.errors.TracerBoolConversionError: "Python's if, and, or and while cannot depend on x, y or values computed "
    "from them: use jnp.where or jax.lax.cond.",
    jax.errors.TracerArrayConversionError: "NumPy's functions cannot be traced: use those of jax.numpy.",
    jax.errors.ConcretizationTypeError: "x, y and values computed from them are not numbers while JAX traces them: "
    "leave out float(), int() and the like.",
}
"""What to do about what JAX cannot trace; the first that fits."""


def _hints(error: Exception, objective: Callable[..., Any], x: PyTree, y: PyTree, data: PyTree) -> Iterator[str]:
    """What may be wrong where a function fails."""
    for kind, hint in _TRACED.items():
        if isinstance(error, kind):
            yield hint
            return
    lists = [name for name, tree in (("x0", x), ("y0", y)) if _is_list_of_numbers(tree)]
    for name in lists:
        yield f"{name} is a list of numbers, of which each is an array of its own: pass jnp.asarray({name})."
    for path, leaf in jax.tree_util.tree_leaves_with_path(data, is_leaf=lambda leaf: leaf is None):
        if leaf is None and path:
            yield f"data{jax.tree_util.keystr(path)} is None."
    if lists:
        return
    yield f"x0 {_described(x)}, y0 {_described(y)}."
    if _works(objective, y, x):
        yield "It works with x0 and y0 swapped: minimize(problem, x0, y0)."


def _is_list_of_numbers(tree: PyTree) -> bool:
    return isinstance(tree, list | tuple) and all(jnp.shape(leaf) == () for leaf in jax.tree.leaves(tree))


def _described(tree: PyTree) -> str:
    return f"has shape {tree.shape}" if isinstance(tree, jax.Array) else f"is a {type(tree).__name__}"


def _works(objective: Callable[..., Any], x: PyTree, y: PyTree) -> bool:
    try:
        jax.eval_shape(objective, x, y)
    except Exception:  # whatever a function of the user raises
        return False
    return True


def _require_derivatives(problem: Problem, x: PyTree, y: PyTree) -> None:
    """f and g must have gradients that JAX knows."""
    for name, oracle in (("upper", problem.grad_upper), ("lower", problem.grad_lower)):
        try:
            jax.eval_shape(oracle, x, y)
        except Exception as error:  # whatever a function of the user raises
            raise ValueError(
                f"{name} cannot be differentiated: {_first_line(error)} Write it with jax.numpy, with loops of fixed "
                "length, or override the oracles of Problem."
            ) from error


def _require_use(problem: Problem, x: PyTree, y: PyTree) -> None:
    """g must depend on every leaf of y (else it is not strongly convex) and on x, f on y, and f or g on every leaf of x
    (else nothing is to be chosen).
    """
    lower_x, lower_y = _used(problem.value_lower, x, y)
    upper_x, upper_y = _used(problem.value_upper, x, y)
    prox_x, _ = _used(lambda x, y: problem.lower_prox(x, y, 1.0), x, y)
    for (path, _), used in zip(jax.tree_util.tree_leaves_with_path(y), lower_y, strict=True):
        if not used:
            leaf = "y" + jax.tree_util.keystr(path)
            raise ValueError(
                f"lower ignores {leaf}, so it has no unique minimiser in y; it must be strongly convex in y. {_SWAPPED}"
            )
    uses = zip(upper_x, lower_x, prox_x, strict=True)
    for (path, _), used_by in zip(jax.tree_util.tree_leaves_with_path(x), uses, strict=True):
        if not any(used_by):
            leaf = "x" + jax.tree_util.keystr(path)
            raise ValueError(f"neither upper nor lower depends on {leaf}, so there is nothing to choose it by.")
    if not any(upper_y):
        raise ValueError(f"upper ignores y, so that nothing depends on the lower level. {_SWAPPED}")
    if not any(lower_x + prox_x):
        raise ValueError(f"lower ignores x, so that its solution y* does not depend on x. {_SWAPPED}")


def _warn_of_constants(problem: Problem, x: PyTree, y: PyTree) -> None:
    """Large arrays that upper or lower close over: copied into the program, which is compiled again for each."""
    own = {id(leaf) for leaf in jax.tree.leaves(problem)}
    for name, objective in (("upper", problem.value_upper), ("lower", problem.value_lower)):
        size = sum(array.nbytes for array in _closed_over(objective, x, y) if id(array) not in own)
        if size >= _LARGE:
            warnings.warn(
                f"{name} uses {size / 1e6:,.0f} MB of arrays that are not arguments of it: they become constants of "
                "the compiled program, which takes several times their memory. Give them as Problem(..., data=...).",
                stacklevel=4,
            )


def _closed_over(objective: Callable[..., Any], x: PyTree, y: PyTree) -> list[Any]:
    """The arrays that become constants, each once."""
    traced = jax.make_jaxpr(lambda *at: objective(*at))(x, y)  # not `objective` itself: see `_require_scalar`
    return list({id(array): array for array in _constants(traced)}.values())


def _constants(closed: Any) -> Iterator[Any]:
    """The arrays that a program holds, and those of programs within it."""
    yield from (each for each in closed.consts if hasattr(each, "nbytes"))
    for equation in closed.jaxpr.eqns:
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: hasattr(each, "consts")):
            if hasattr(inner, "consts"):
                yield from _constants(inner)


def _require_lower_regularizer(problem: Problem, x: PyTree, y: PyTree) -> None:
    """r_x must be a convex regularizer that fits y."""
    if problem.lower_regularizer is None:
        return
    try:
        jax.eval_shape(lambda: problem.lower_regularizer_at(x).value(y))
    except Exception as error:
        raise type(error)(f"lower_regularizer fails on the given x0, y0 and data: {_first_line(error)}") from error
    _require_same("lower_regularizer", "prox", y, lambda: problem.lower_prox(x, y, 1.0), "y0")


def _used(function: Callable[..., Any], x: PyTree, y: PyTree) -> tuple[list[bool], list[bool]]:
    """For each leaf of x and of y, whether the value of `function` can depend on it, through loops and branches too."""
    jaxpr = jax.make_jaxpr(function)(x, y).jaxpr
    _, live = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    split = len(jax.tree.leaves(x))
    return live[:split], live[split:]


def _require_same(name: str, action: str, before: PyTree, compute: Callable[[], PyTree], of: str = "x0") -> None:
    """The space must be closed under `compute`: same structure, shapes and dtypes."""
    try:
        after = jax.eval_shape(compute)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} does not fit x0, y0 and data: its {action} fails: {_first_line(error)}") from error
    if jax.tree.structure(after) != jax.tree.structure(before):
        raise ValueError(f"{name} does not fit {of}: its {action} changes the structure of its argument.")
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(
                f"{name}: its {action} turns {jax.tree_util.keystr(path) or of[0]} from {a.dtype}{list(a.shape)} into "
                f"{b.dtype}{list(b.shape)}; give x0, y0 and data shapes that fit and one floating point dtype."
            )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
