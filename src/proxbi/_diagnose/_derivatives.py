"""Derivatives against differences, and what differences do not see."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxbi import _compile, _tree
from proxbi._diagnose._page import Level, Look, level
from proxbi._diagnose._start import Start, moved, random_direction
from proxbi._tree import Scalar
from proxbi.problem import Problem

WRONG = 0.01  # relative: derivatives that differ by more are wrong; a missing factor or sign differs by far more
_DOUBT = 3.0  # times the change of a difference when its step is doubled, which is three times its error
_BLIND = 0.1  # relative: an error that rounding could make is too large to tell
ROUNDING = 100.0  # units of rounding by which sums of many products may be off


class _Comparison(NamedTuple):
    """A derivative beside a difference."""

    size: Scalar
    apart: Scalar
    doubt: Scalar
    """By how much the difference may be off."""


_ORACLES = {
    "f_x": "grad_upper",
    "f_y": "grad_upper",
    "g_y": "grad_lower",
    "g_x": "grad_lower_x",
    "g_yy v": "hvp",
    "g_xy v": "cross",
}


def derivatives(start: Start) -> Iterator[Look]:
    one, two, three, four = jax.random.split(start.key, 4)
    x, y = start.x, start.solution
    near = moved(one, x), moved(two, y)
    at = near if bool(jnp.isfinite(start.problem.value_lower(*near))) else (x, y)
    compared = _compared(start.problem, *at, random_direction(three, at[0]), random_direction(four, at[1]))
    for name, oracle in _ORACLES.items():
        own = getattr(type(start.problem), oracle) is not getattr(Problem, oracle)
        size, apart, doubt = map(float, compared[name])
        yield _compared_look(f"{name} ({oracle}, yours)" if own else name, oracle, size, apart, doubt)
    yield from _own(start, at)


def _compared_look(subject: str, oracle: str, size: float, apart: float, doubt: float) -> Look:
    if not np.isfinite([size, apart]).all():
        return Look(subject, "NaN or infinite", "no derivative here. Check the domain.", Level.FAULT)
    relative = apart / size if size > 0 else 0.0
    number = f"{relative:.1e} off central differences"
    if apart > WRONG * size + _DOUBT * doubt:
        verdict = f"wrong: correct {oracle}, or upper and lower if they have derivatives of their own (custom_vjp)."
        return Look(subject, number, f"{verdict} A kink at the start looks the same.", Level.FAULT)
    if _DOUBT * doubt > _BLIND * size > 0:
        return Look(subject, number, "rounding hides it: check in float64, or without constants in f.", Level.NOTE)
    return Look(subject, number, "right.")


@_compile.jit
def _compared(problem: Problem, x: PyTree, y: PyTree, u: PyTree, w: PyTree) -> dict[str, _Comparison]:
    """Each oracle along the directions u of x and w of y."""
    upper_x, upper_y = problem.grad_upper(x, y)
    in_x: dict[str, tuple[PyTree, Callable[[PyTree], PyTree]]] = {
        "f_x": (_tree.dot(upper_x, u), lambda at: problem.value_upper(at, y)),
        "g_x": (_tree.dot(problem.grad_lower_x(x, y), u), lambda at: problem.value_lower(at, y)),
    }
    in_y: dict[str, tuple[PyTree, Callable[[PyTree], PyTree]]] = {
        "f_y": (_tree.dot(upper_y, w), lambda at: problem.value_upper(x, at)),
        "g_y": (_tree.dot(problem.grad_lower(x, y), w), lambda at: problem.value_lower(x, at)),
        "g_yy v": (problem.hvp(x, y)(w), lambda at: problem.grad_lower(x, at)),
        "g_xy v": (problem.cross(x, y)(w), lambda at: problem.grad_lower_x(x, at)),
    }
    found = {name: _comparison(claimed, function, x, u) for name, (claimed, function) in in_x.items()}
    return found | {name: _comparison(claimed, function, y, w) for name, (claimed, function) in in_y.items()}


def _comparison(claimed: PyTree, function: Callable[[PyTree], PyTree], at: PyTree, direction: PyTree) -> _Comparison:
    eps = float(jnp.finfo(jax.tree.leaves(at)[0].dtype).eps)
    step = eps ** (1 / 3)  # where the rounding of a central difference is as large as its own error

    def difference(t: float) -> PyTree:
        ends = (function(_tree.axpy(t * sign, direction, at)) for sign in (1, -1))
        return _tree.scale(0.5 / t, _tree.subtract(*ends))

    near, far = difference(step), difference(2 * step)
    rounding = eps / step * _tree.norm(function(at))
    return _Comparison(
        size=jnp.maximum(_tree.norm(claimed), _tree.norm(near)),
        apart=_tree.norm(_tree.subtract(claimed, near)),
        doubt=_tree.norm(_tree.subtract(near, far)) + rounding,
    )


def _own(start: Start, at: tuple[PyTree, PyTree]) -> Iterator[Look]:
    """What differences do not see: symmetry, and the parts of a subclass that belong together."""
    problem, key = start.problem, start.key
    eps = float(jnp.finfo(jax.tree.leaves(at[0])[0].dtype).eps)
    ends = tuple(random_direction(k, at[1]) for k in jax.random.split(key))
    skew = float(_hessian_skew(problem, *at, *ends))
    verdict = "symmetric." if skew <= ROUNDING * eps else "not symmetric, so not a Hessian. Correct hvp."
    yield Look("g_yy", f"<u, g_yy w> and <w, g_yy u> differ by {skew:.1e}", verdict, level(skew <= ROUNDING * eps))
    precondition = problem.preconditioner(*at)
    if precondition is not None:
        good = float(_skew(precondition, *ends)) <= eps**0.5 and all(
            float(_tree.dot(r, precondition(r))) > 0 for r in ends
        )
        verdict = (
            "symmetric and positive." if good else "not symmetric and positive definite. Correct it, or leave it out."
        )
        yield Look("preconditioner, yours", "", verdict, level(good))
    for name in ("upper", "lower"):
        both = f"value_and_grad_{name}"
        if getattr(type(problem), both) is not getattr(Problem, both):
            together = getattr(problem, both)(*at)
            alone = getattr(problem, f"value_{name}")(*at), getattr(problem, f"grad_{name}")(*at)
            off = float(_tree.norm(_tree.subtract(together, alone)) / (1 + _tree.norm(alone)))
            verdict = "agrees." if off <= WRONG else f"not value_{name} and grad_{name}. Correct one of them."
            yield Look(f"{both}, yours", f"{off:.1e} off", verdict, level(off <= WRONG))


@_compile.jit
def _hessian_skew(problem: Problem, x: PyTree, y: PyTree, u: PyTree, w: PyTree) -> Scalar:
    return _skew(problem.hvp(x, y), u, w)


def _skew(matvec: Callable[[PyTree], PyTree], u: PyTree, w: PyTree) -> Scalar:
    one, two = matvec(w), matvec(u)
    size = _tree.norm(u) * _tree.norm(one) + _tree.norm(w) * _tree.norm(two)
    return jnp.abs(_tree.dot(u, one) - _tree.dot(w, two)) / jnp.where(size > 0, size, 1)
