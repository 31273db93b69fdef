"""Refuse a problem that cannot be solved as it was given, before anything is compiled, in words that name the
argument.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from proxbi import _check, _compile
from proxbi.problem import Problem
from proxbi.solvers import Solver, traced_step


def checked(problem: Problem, solver: Solver, x0: PyTree, y0: PyTree) -> tuple[Problem, PyTree, PyTree, PyTree]:
    """The arguments with JAX arrays for leaves and the solver's first state, or an error that says which of them is
    wrong and why.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a proxbi Problem, got {type(problem).__name__}.")
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be a proxbi Solver such as ProxBiO(...), got {type(solver).__name__}.")
    x0, y0 = _check.float_tree("x0", x0), _check.float_tree("y0", y0)
    _require_one_dtype(x0, y0)
    problem = eqx.tree_at(
        lambda p: p.data, problem, _check.data_tree("data", problem.data), is_leaf=lambda d: d is None
    )
    for name, objective in (("upper", problem.value_upper), ("lower", problem.value_lower)):
        _require_scalar(name, objective, x0, y0)
    _require_lower_regularizer(problem, x0, y0)
    _require_use(problem, x0, y0)
    _require_same("regularizer", "prox", x0, lambda: problem.regularizer.prox(x0, 1.0))
    state = _first(problem, solver, x0, y0)
    _require_same("solver", "step", state, lambda: traced_step(problem, solver, state, jax.random.key(0))[0])
    return problem, x0, y0, state


@_compile.jit  # operation by operation it takes several times as long
def _first(problem: Problem, solver: Solver, x0: PyTree, y0: PyTree) -> PyTree:
    return solver.init(problem, x0, y0)


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


def _require_scalar(name: str, objective: Callable[..., Any], x: PyTree, y: PyTree) -> None:
    try:
        # Not `objective` itself: JAX compares methods that it has seen, and so their arrays, which may be traced here.
        value = jax.eval_shape(lambda *at: objective(*at), x, y)
    except Exception as error:
        raise ValueError(f"{name} fails on the given x0, y0 and data: {_first_line(error)}") from error
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise ValueError(f"{name} must return a scalar, got {type(value).__name__}.")
    if shape != ():
        raise ValueError(f"{name} must return a scalar, got an array of shape {shape}; use jnp.sum or jnp.mean.")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{name} must return a floating point scalar, got {dtype}.")


def _require_use(problem: Problem, x: PyTree, y: PyTree) -> None:
    """g must depend on every leaf of y (else it is not strongly convex), and f or g on every leaf of x (else
    nothing is to be chosen).
    """
    lower_x, lower_y = _used(problem.value_lower, x, y)
    upper_x, _ = _used(problem.value_upper, x, y)
    prox_x, _ = _used(lambda x, y: problem.lower_prox(x, y, 1.0), x, y)
    for (path, _), used in zip(jax.tree_util.tree_leaves_with_path(y), lower_y, strict=True):
        if not used:
            leaf = "y" + jax.tree_util.keystr(path)
            raise ValueError(
                f"lower ignores {leaf}, so it has no unique minimiser in y; it must be strongly convex in y."
            )
    uses = zip(upper_x, lower_x, prox_x, strict=True)
    for (path, _), used_by in zip(jax.tree_util.tree_leaves_with_path(x), uses, strict=True):
        if not any(used_by):
            leaf = "x" + jax.tree_util.keystr(path)
            raise ValueError(f"neither upper nor lower depends on {leaf}, so there is nothing to choose it by.")


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
    """For each leaf of x and of y, whether the value of `function` can depend on it."""
    jaxpr = jax.make_jaxpr(function)(x, y).jaxpr
    live = _live_inputs(jaxpr, [True] * len(jaxpr.outvars))
    split = len(jax.tree.leaves(x))
    return live[:split], live[split:]


def _live_inputs(jaxpr: Any, live_outputs: list[bool]) -> list[bool]:
    """Which inputs of a jaxpr its live outputs depend on: one pass backwards, looking into nested jits."""
    live = {v for v, is_live in zip(jaxpr.outvars, live_outputs, strict=True) if is_live and not hasattr(v, "val")}
    for equation in reversed(jaxpr.eqns):
        outputs = [v in live for v in equation.outvars]
        if not any(outputs):
            continue
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        inputs = _live_inputs(inner.jaxpr, outputs) if inner is not None else [True] * len(equation.invars)
        live |= {v for v, is_live in zip(equation.invars, inputs, strict=True) if is_live and not hasattr(v, "val")}
    return [v in live for v in jaxpr.invars]


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
