"""Checks of arguments: each raises an error that names the argument, what was expected and what was given.

Values that JAX is tracing (inside `jit`, `vmap`, `grad`) cannot be checked and pass: they were checked where they
were concrete.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

Number = Any
"""The declared type of a numeric field: given as a number or an array, kept as a JAX array by the converter
`as_float`. (mypy does not know converters: with `Array` here it would refuse `L1(0.1)`.)"""


def as_float(value: Any) -> Array:
    """A number or array as a floating point JAX array: dynamic, so that changing it recompiles nothing."""
    if isinstance(value, bool | int):
        value = float(value)  # a Python float stays weakly typed and follows the dtype it meets
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def optional_float(value: Any) -> Array | None:
    """`as_float`, but None stays None."""
    return None if value is None else as_float(value)


def below_one(name: str, value: Array | float) -> None:
    """Refuse `value` unless it is in [0, 1)."""
    _number(name, value, lambda v: (v >= 0) & (v < 1), "in [0, 1)")


def require(condition: Any, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds (everywhere); a traced condition passes."""
    if isinstance(condition, jax.core.Tracer):
        return
    if not np.all(condition):
        raise ValueError(message)


def positive(name: str, value: Array | float) -> None:
    """Refuse `value` unless it is finite and > 0 everywhere."""
    _number(name, value, lambda v: v > 0, "finite and > 0")


def non_negative(name: str, value: Array | float) -> None:
    """Refuse `value` unless it is finite and >= 0 everywhere."""
    _number(name, value, lambda v: v >= 0, "finite and >= 0")


def positive_int(name: str, value: Any) -> None:
    """Refuse `value` unless it is a Python (or NumPy) integer > 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer > 0, got {value!r}.")
    if value <= 0:
        raise ValueError(f"{name} must be an integer > 0, got {value}.")


def float_tree(name: str, tree: PyTree) -> PyTree:
    """`tree` with JAX arrays for leaves, or an error: it must have a leaf, and all must be floating point and
    finite.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        raise ValueError(f"{name} is an empty pytree: it has no array in it.")
    for path, leaf in leaves:
        _float_leaf(name + jax.tree_util.keystr(path), leaf)
    return jax.tree.map(_strong, tree)


def _strong(leaf: Any) -> Array:
    """As a JAX array, not weakly typed: a first step that changes the type would compile all twice."""
    array = jnp.asarray(leaf)
    return array.astype(array.dtype) if array.weak_type else array


def data_tree(name: str, tree: PyTree) -> PyTree:
    """`tree` with JAX arrays for leaves, or an error: leaves must be numeric arrays, and the floating ones finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = name + jax.tree_util.keystr(path)
        if not is_numeric(leaf):
            raise TypeError(f"{where} must be a numeric array, got {type(leaf).__name__}.")
        _finite(where, leaf)
    return jax.tree.map(jnp.asarray, tree)


def is_numeric(leaf: Any) -> bool:
    """Whether `leaf` can be an array of numbers on a device."""
    if isinstance(leaf, jax.Array):
        return True
    return (
        isinstance(leaf, bool | int | float | complex | np.generic | np.ndarray)
        and np.asarray(leaf).dtype.kind in "biufc"
    )


def _float_leaf(where: str, leaf: Any) -> None:
    if not is_numeric(leaf):
        raise TypeError(f"{where} must be a floating point array, got {type(leaf).__name__}.")
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        how = ".astype(float)" if hasattr(leaf, "astype") else "float()"
        raise TypeError(f"{where} must be floating point to be differentiated, got {dtype}; convert it with {how}.")
    if np.size(leaf) == 0:
        raise ValueError(f"{where} is empty: it has shape {np.shape(leaf)}.")
    _finite(where, leaf)


def _finite(where: str, leaf: Any) -> None:
    if isinstance(leaf, jax.core.Tracer):
        return
    if isinstance(leaf, jax.Array) and (not jnp.issubdtype(leaf.dtype, jnp.inexact) or _finite_where_it_lies(leaf)):
        return
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise ValueError(f"{where} has NaN or infinite values.")  # where, other processes know
    values = np.asarray(leaf)
    if values.dtype.kind not in "fc":
        return
    bad = ~np.isfinite(values)
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{where} has {int(bad.sum())} NaN or infinite value(s), the first at index {first}.")


@jax.jit
def _all_finite(array: Array) -> Array:
    return jnp.all(jnp.isfinite(array))


def _finite_where_it_lies(array: Array) -> bool:
    """Whether an array on an accelerator, or on several devices, is finite: gigabytes are not copied for that. On a CPU
    NumPy looks at them.
    """
    devices = array.devices()
    lies_afar = len(devices) > 1 or all(device.platform != "cpu" for device in devices)
    return lies_afar and bool(_all_finite(array))


def _number(name: str, value: Array | float, holds: Callable[[Any], Any], expected: str) -> None:
    if isinstance(value, jax.core.Tracer):
        return
    if not np.all(np.isfinite(value)) or not np.all(holds(np.asarray(value))):
        raise ValueError(f"{name} must be {expected}, got {value}.")
