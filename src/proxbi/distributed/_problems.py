r"""Problems whose rows are spread over a mesh.

Of rows in two kinds: a `glm.linear_model`, and any `Problem` on `Rows`. Either way y and all that is shaped as y is the
same on all devices, x has its entries where the rows are, and a gradient or a product with g_yy is a sum over rows, of
which every device computes its part: one all-reduce of a vector as large as y.

- **Linear models**: the compiler sees two matrix products, and partitions them itself.
- **`Rows`**: upper and lower are means over rows, plus terms without rows, so

      g(x, y) = 1/n sum_i g_i(x_i, y),    g_i(x_i, y) = lower(x_i, y, row i),

  and every device adds up the g_i of its own rows (`rows._own.row_terms`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from proxbi._place import Place
from proxbi._tree import Scalar
from proxbi.distributed import _layout
from proxbi.distributed._parts import SpreadRows, filled
from proxbi.distributed._place_of_rows import RowPlace
from proxbi.glm import LinearModel
from proxbi.problem import Problem
from proxbi.rows import Batch
from proxbi.rows._batches import Level
from proxbi.rows._own import has_rows, row_terms


class LinearModelOnMesh(LinearModel):
    """A `glm.linear_model` with its rows on a mesh; made by `shard`."""

    layout: RowPlace = eqx.field(static=True, kw_only=True)

    @property
    def place(self) -> Place:
        """The mesh."""
        return self.layout

    def filled_by(self, fill: PyTree) -> "LinearModelOnMesh":
        """With these entries of x in the place of those of no row."""
        upper, lower = (eqx.tree_at(_fill, level, fill, is_leaf=_is_none) for level in (self.upper, self.lower))
        return replace(self, upper=upper, lower=lower)


def _fill(level: Any) -> PyTree:
    return level.weights.fill


def _is_none(node: Any) -> bool:
    return node is None


class ProblemOnMesh(Problem):
    """A `Problem` on `Rows` with its rows on a mesh; made by `shard`. A level that a solver replaced by a batch is no
    longer spread: all devices look at it.
    """

    layout: RowPlace = eqx.field(static=True, kw_only=True)
    fill: PyTree = None

    @property
    def place(self) -> Place:
        """The mesh."""
        return self.layout

    def filled_by(self, fill: PyTree) -> "ProblemOnMesh":
        """With these entries of x in the place of those of no row."""
        return replace(self, fill=fill)

    def row_numbers(self) -> tuple[int, int]:
        return len(self.data.upper), len(self.data.lower)

    def value_upper(self, x: PyTree, y: PyTree) -> Scalar:
        return self._sum("upper", _value, x, y, _ALL)

    def value_lower(self, x: PyTree, y: PyTree) -> Scalar:
        return self._sum("lower", _value, x, y, _ALL)

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return self._sum("upper", _gradient((0, 1)), x, y, (_OF_X, _ALL))

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        return self._sum("lower", _gradient(1), x, y, _ALL)

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        return self._sum("lower", _gradient(0), x, y, _OF_X)

    def value_and_grad_upper(self, x: PyTree, y: PyTree) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        return self._sum("upper", _value_and_gradient((0, 1)), x, y, (_ALL, (_OF_X, _ALL)))

    def value_and_grad_lower(self, x: PyTree, y: PyTree) -> tuple[Scalar, PyTree]:
        return self._sum("lower", _value_and_gradient(1), x, y, (_ALL, _ALL))

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return jax.linearize(lambda at: self.grad_lower(x, at), y)[1]

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return jax.linearize(lambda at: self.grad_lower_x(x, at), y)[1]

    def _sum(self, level: Level, compute: "Compute", x: PyTree, y: PyTree, result: PyTree) -> Any:
        """`compute` for every device's part of the mean over a level, added up; what `result` says is of the shape of x
        stays where its rows are.
        """
        function, source = getattr(self, level), getattr(self.data, level)
        if isinstance(source, Batch):
            return compute(lambda x, y: function(x, y, source), x, y)
        places, spread, copied = self.layout.places, PartitionSpec(_layout.AXIS), PartitionSpec()
        flags = jax.tree.map(lambda leaf: has_rows(leaf, places), x)
        of_x = jax.tree.map(lambda flag: spread if flag else copied, flags)

        def part(x: PyTree, y: PyTree, source: SpreadRows, numbers: Any) -> Any:
            found = compute(lambda x, y: self._part(level, x, y, source, flags, numbers), x, y)
            return jax.tree.map(lambda kind, one: _added(one, flags if kind == _OF_X else None), result, found)

        mapped = jax.shard_map(
            part,
            mesh=self.layout.mesh,
            in_specs=(of_x, copied, spread, spread),
            out_specs=jax.tree.map(lambda kind: of_x if kind == _OF_X else copied, result),
            check_vma=False,
        )
        numbers = jnp.arange(source.places, dtype=jnp.int32)
        return mapped(filled(x, self.fill, self.layout.count, places), y, source, numbers)

    def _part(self, level: Level, x: PyTree, y: PyTree, source: SpreadRows, spread: PyTree, numbers: Any) -> Scalar:
        """The sum of f_i / n, or of g_i / n, over the rows of one device."""
        own = jax.tree.map(lambda flag: flag and level == "lower", spread)
        values = row_terms(getattr(self, level), x, y, source.rows, own, source.count)
        return jnp.sum(jnp.where(numbers < source.count, values, 0)) / jnp.asarray(source.count, values.dtype)


Compute = Callable[[Callable[[PyTree, PyTree], Scalar], PyTree, PyTree], Any]
_ALL, _OF_X = "all", "x"


def _added(found: PyTree, stays: PyTree | None) -> PyTree:
    """Summed over the devices, but for leaves that stay."""
    if stays is None:
        return jax.lax.psum(found, _layout.AXIS)
    return jax.tree.map(lambda flag, leaf: leaf if flag else jax.lax.psum(leaf, _layout.AXIS), stays, found)


def _value(f: Callable[[PyTree, PyTree], Scalar], x: PyTree, y: PyTree) -> Scalar:
    return f(x, y)


def _gradient(of: Any) -> Compute:
    return lambda f, x, y: jax.grad(f, argnums=of)(x, y)


def _value_and_gradient(of: Any) -> Compute:
    return lambda f, x, y: jax.value_and_grad(f, argnums=of)(x, y)
