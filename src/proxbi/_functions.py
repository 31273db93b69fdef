"""The functions that users write, as pytrees that are called with the data of the problem."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import Partial
from jaxtyping import PyTree

from proxbi._tree import Scalar
from proxbi.regularizers import Regularizer, Zero

_OBJECTIVE = "a function of (x, y, data), or of (x, y), that returns a scalar"
_LOWER_REGULARIZER = "a proxbi Regularizer such as L1(0.1), or a function of x, or of (x, data), that returns one"
_ORDINAL = {1: "second", 2: "third"}


def objective_of(name: str, function: Any) -> Callable[..., Scalar]:
    """`function` as a pytree that is called with (x, y, data)."""
    if not callable(function):
        raise TypeError(f"{name} must be {_OBJECTIVE}, got {type(function).__name__}.")
    # A Partial is a pytree whose function is static: plain functions need it, callable modules are pytrees already.
    objective = _as_pytree(function)
    return objective if _takes_data(name, function, 2, _OBJECTIVE) else Partial(_without_data, objective)


def _as_pytree(function: Any) -> Any:
    return Partial(function) if jax.tree_util.all_leaves([function]) else function


def written(objective: Any) -> Any:
    """The function that the user wrote, of which `Problem` made `objective`."""
    while isinstance(objective, Partial):
        objective = objective.args[0] if objective.func is _without_data else objective.func
    return objective


def _without_data(function: Callable[..., Any], *arguments: PyTree) -> Any:
    return function(*arguments[:-1])


def lower_regularizer_of(given: Any) -> Any:
    """None for r = 0, a convex `Regularizer`, or a pytree that is called with (x, data) and returns one."""
    if given is None or isinstance(given, Zero):
        return None
    if isinstance(given, Regularizer):
        return convex(given)
    if not callable(given) or isinstance(given, type):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        raise TypeError(f"lower_regularizer must be {_LOWER_REGULARIZER}, got {name}.")
    takes_data = _takes_data("lower_regularizer", given, 1, _LOWER_REGULARIZER)
    return _as_pytree(given) if takes_data else Partial(_without_data, _as_pytree(given))


def convex(r: Any) -> Regularizer:
    if not isinstance(r, Regularizer):
        raise TypeError(f"lower_regularizer must be {_LOWER_REGULARIZER}, but it returns {type(r).__name__}.")
    if not r.convex:
        raise TypeError(
            f"lower_regularizer must be convex, and {type(r).__name__} is not: the lower level could have several "
            "minimisers, and y*(x) would jump between them."
        )
    return r


def _takes_data(name: str, function: Callable[..., Any], needed: int, expected: str) -> bool:
    """Whether the argument after the `needed` ones is for the data: it is where it is required, called `data`, or one
    of `*args`. Any other one has a default that data must not overwrite in silence.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function that does not say
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    if len(positional) < needed:
        raise TypeError(f"{name} must be {expected}, but it takes {len(positional)} argument(s).")
    if len(positional) == needed:
        return False
    last = positional[needed]
    if last.default is last.empty or last.name == "data":
        return True
    raise TypeError(
        f"{name}: its {_ORDINAL[needed]} argument {last.name!r} has a default, and would be given the data of the "
        f"problem. Call it `data`, or bind it: functools.partial({name}, {last.name}=...)."
    )
