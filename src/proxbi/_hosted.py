r"""Problems on `Rows` that stay on the host, for solvers that look at all rows: one pass over them for each oracle.

f and g are means over rows, plus terms without rows, so that

    g(x, y) = sum_B 1/n sum_{i in B} g_i(x_i, y),        g_i(x_i, y) = lower(x_i, y, row i),

over the blocks B of `rows._host`. What is shaped as y, and leaves of x that belong to no row, are compensated sums over
blocks; leaves of x with an entry for each row are written block by block. In memory are two blocks, and vectors as long
as x. `glm.streamed_model` does the same for linear models, whose derivatives it knows.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from proxbi import _check
from proxbi._tree import Scalar
from proxbi.problem import Problem
from proxbi.rows import Batch, Rows, RowSource
from proxbi.rows._batches import LEVELS, Level
from proxbi.rows._host import HostBlock, HostRows, Prefetched, require_usable
from proxbi.rows._own import has_rows, require_own_rows, row_terms, trial_at

Term = Callable[[PyTree, PyTree], Scalar]
"""The part of f or g that a block has, as a function of its own entries of x and of y."""


class Levels(eqx.Module):
    """The rows of each level: on the host, or a batch of all of them."""

    upper: HostRows | Batch
    lower: HostRows | Batch


class Hosted(Problem):
    """A `Problem` whose rows stay on the host; made by `hosted`."""

    def row_numbers(self) -> tuple[int, int]:
        return len(self.data.upper), len(self.data.lower)

    def value_upper(self, x: PyTree, y: PyTree) -> Scalar:
        return self._sum("upper", x, lambda f, own: f(own, y))

    def value_lower(self, x: PyTree, y: PyTree) -> Scalar:
        return self._sum("lower", x, lambda g, own: g(own, y))

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return self.value_and_grad_upper(x, y)[1]

    def value_and_grad_upper(self, x: PyTree, y: PyTree) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        value, (f_x, f_y) = self._sum("upper", x, lambda f, own: jax.value_and_grad(f, argnums=(0, 1))(own, y))
        if isinstance(self.data.upper, HostRows):  # which has nothing to do with the entries of lower rows
            f_x = eqx.combine(jax.tree.map(jnp.zeros_like, self._parted(x)[0]), self._parted(f_x, x)[1])
        return value, (f_x, f_y)

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        return self._sum("lower", x, lambda g, own: jax.grad(g, argnums=1)(own, y))

    def value_and_grad_lower(self, x: PyTree, y: PyTree) -> tuple[Scalar, PyTree]:
        value, g_y = self._sum("lower", x, lambda g, own: jax.value_and_grad(g, argnums=1)(own, y))
        return value, g_y

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        return self._shaped_as_x(x, lambda g, own: jax.grad(g)(own, y))

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        def product(g: Term, own: PyTree, v: PyTree) -> PyTree:
            return jax.jvp(lambda at: jax.grad(g, argnums=1)(own, at), (y,), (v,))[1]

        return lambda v: self._sum("lower", x, lambda g, own: product(g, own, v))

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        def product(g: Term, own: PyTree, v: PyTree) -> PyTree:
            return jax.jvp(lambda at: jax.grad(g)(own, at), (y,), (v,))[1]

        return lambda v: self._shaped_as_x(x, lambda g, own: product(g, own, v))

    def _sum(self, level: Level, x: PyTree, oracle: Callable[[Term, PyTree], Any]) -> Any:
        """The sum of an oracle of the blocks of a level."""
        rows = getattr(self.data, level)
        if isinstance(rows, Batch):
            return oracle(self._whole(level, rows), x)
        return rows.sum(lambda block: oracle(self._term(level, block, x), self._own(level, block, x)))

    def _shaped_as_x(self, x: PyTree, oracle: Callable[[Term, PyTree], PyTree]) -> PyTree:
        """An oracle of lower whose result has the entries of the rows of its block, and sums for the other leaves."""
        rows = self.data.lower
        if isinstance(rows, Batch):
            return oracle(self._whole("lower", rows), x)

        def of_block(block: HostBlock) -> tuple[PyTree, PyTree]:
            entries, shared = self._parted(oracle(self._term("lower", block, x), self._own("lower", block, x)), x)
            return shared, entries

        shared, entries = rows.both(of_block, self._parted(x)[0])
        return eqx.combine(entries, shared)

    def _whole(self, level: Level, rows: Batch) -> Term:
        return lambda own, y: getattr(self, level)(own, y, rows)

    def _term(self, level: Level, block: HostBlock, x: PyTree) -> Term:
        count = len(getattr(self.data, level))
        flags = jax.tree.map(lambda flag: flag and level == "lower", self._flags(x))

        def term(own: PyTree, y: PyTree) -> Scalar:
            values = row_terms(getattr(self, level), own, y, block.rows, flags, count)
            return jnp.sum(values * block.counts.astype(values.dtype)) / jnp.asarray(count, values.dtype)

        return term

    def _own(self, level: Level, block: HostBlock, x: PyTree) -> PyTree:
        """x with the entries of the rows of a block. Those of upper have none: one stands for all, and is not used."""
        entries, shared = self._parted(x)
        return eqx.combine(jax.tree.map(block.of if level == "lower" else _first, entries), shared)

    def _parted(self, tree: PyTree, x: PyTree = None) -> tuple[PyTree, PyTree]:
        """A tree like x: its leaves with an entry for each lower row, and the others."""
        entries, shared = eqx.partition(tree, self._flags(tree if x is None else x))
        return entries, shared

    def _flags(self, x: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: has_rows(leaf, len(self.data.lower)), x)


def _first(leaf: Any) -> Any:
    return leaf[:1]


def hosted(problem: Problem, x0: PyTree, y0: PyTree) -> Hosted:
    """The problem with oracles that read its rows block by block. Its rows are read once, and rejected if they
    have NaN or classes out of range; and so are functions that are no means over rows, or look at rows of others.
    """
    rows: Rows = problem.data
    if type(problem) is not Problem:
        raise TypeError(
            f"data: its rows are on the host, and {type(problem).__name__} has oracles of its own: give it arrays, or "
            "take a solver on batches, such as ProxSOBA()."
        )
    given = {level: getattr(rows, level) for level in LEVELS}
    sources = {
        level: HostRows(Prefetched(source)) if isinstance(source, RowSource) else rows.level(level)
        for level, source in given.items()
    }
    at = trial_at(_check.float_tree("x0", x0), _check.float_tree("y0", y0), len(sources["lower"]))
    for level, source in sources.items():
        if isinstance(source, HostRows):
            few = jax.tree.map(jnp.asarray, source.source.block(0, min(at.few, len(source))))
            require_own_rows(level, getattr(problem, level), few, len(source), at)
            require_usable(level, source, rows.classes)
    return Hosted(
        problem.upper,
        problem.lower,
        problem.regularizer,
        Levels(**sources),
        lower_regularizer=problem.lower_regularizer,
    )
