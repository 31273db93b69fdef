"""Vector arithmetic on pytrees: the few operations every algorithm here is written in.

Each keeps the dtype of the tree it returns, whatever dtype the scalar has, so that a float64 step size
never promotes a float32 iterate.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

Scalar = Float[Array, ""]
_FEW = 2  # leaves


def axpy(factor: Any, direction: PyTree, start: PyTree) -> PyTree:
    """`start + factor * direction`, leaf by leaf."""
    return jax.tree.map(lambda d, s: s + jnp.asarray(factor, s.dtype) * d, direction, start)


def scale(factor: Any, tree: PyTree) -> PyTree:
    """`factor * tree`."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """`left - right`."""
    return jax.tree.map(operator.sub, left, right)


def zeros_like(tree: PyTree) -> PyTree:
    """The zero vector of the space `tree` lives in."""
    return jax.tree.map(jnp.zeros_like, tree)


def where(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` if `condition` else `no`, as whole trees."""
    if len(jax.tree.leaves(yes)) <= _FEW:
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
    # XLA would compute the condition, and all that leads to it, anew for every leaf: much to compile, and to run.
    yes = jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), yes, no)
    return jax.lax.cond(condition, lambda: yes, lambda: no)


def total(tree: PyTree) -> Scalar:
    """Sum of all entries of all leaves."""
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), start=_zero(tree))


def dot(left: PyTree, right: PyTree) -> Scalar:
    """The inner product over all leaves."""
    return total(jax.tree.map(operator.mul, left, right))


def norm(tree: PyTree) -> Scalar:
    """The Euclidean norm over all leaves; finite (zero) gradient at the origin, no overflow for large entries."""
    return norms(tree)[0]


def norms(*trees: PyTree) -> tuple[Scalar, ...]:
    """The norm of each of several trees of the same kind: as one program, which compiles in the time of one norm."""
    number = len(trees)
    leaves = [jnp.stack(same).reshape(number, -1) for same in zip(*map(jax.tree.leaves, trees), strict=True)]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), axis=1, initial=0) for leaf in leaves]), axis=0)
    limits = jnp.finfo(largest.dtype)
    # XLA divides by multiplying with the reciprocal, which must not be denormal: it would be taken for 0.
    unit = jax.lax.stop_gradient(jnp.clip(largest, float(limits.tiny), float(limits.max) / 8))
    scaled = [leaf / unit[:, None].astype(leaf.dtype) for leaf in leaves]
    squares = sum((jnp.sum(leaf * leaf, axis=1) for leaf in scaled), start=jnp.zeros_like(unit))
    # Unless all entries are 0, the squares are about 1 or more, or NaN.
    sizes = jnp.where(squares == 0, 0, unit * jnp.sqrt(jnp.where(squares == 0, 1, squares)))
    return tuple(sizes[k] for k in range(number))


def length(tree: PyTree) -> Scalar:
    """The norm of a vector that is known to be of moderate size: cheaper than `norm`, which guards overflow."""
    return jnp.sqrt(dot(tree, tree))


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no leaf holds a NaN or an infinity."""
    flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack(flags)) if flags else jnp.asarray(True)


def _zero(tree: PyTree) -> Scalar:
    leaves = jax.tree.leaves(tree)
    return jnp.zeros((), jnp.result_type(*leaves)) if leaves else jnp.zeros(())
