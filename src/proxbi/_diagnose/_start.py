"""Where `check` looks: the start, the lower solution there, and points nearby."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _compile, _tree
from proxbi._own_loop import HypergradientInfo
from proxbi.hypergradient import Outcome
from proxbi.problem import Problem

AWAY = 0.01  # relative: far enough from a start of zeros to see all terms, near enough to stay in most domains


class Start(NamedTuple):
    """What the looks look at."""

    problem: Problem
    x: PyTree
    y: PyTree
    key: PRNGKeyArray
    found: HypergradientInfo | None
    """At x; None where it could not be computed at all."""
    grad: PyTree

    @property
    def solved(self) -> bool:
        return self.found is not None and int(self.found.outcome) <= Outcome.ROUGH

    @property
    def solution(self) -> PyTree:
        """y*(x), or where the search for it ended."""
        found = self.y if self.found is None else self.found.y
        return found if bool(_tree.all_finite(found)) else self.y


@_compile.jit
def random_direction(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """A random direction in which each entry moves by about its own size, or by 1 from 0."""
    leaves, structure = jax.tree.flatten(tree)
    moves = [
        jax.random.normal(k, leaf.shape, leaf.dtype) * jnp.where(leaf == 0, 1, jnp.abs(leaf))
        for k, leaf in zip(jax.random.split(key, len(leaves)), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, moves)


@_compile.jit
def moved(key: PRNGKeyArray, tree: PyTree) -> PyTree:
    """A point nearby."""
    return _tree.axpy(AWAY, random_direction(key, tree), tree)
