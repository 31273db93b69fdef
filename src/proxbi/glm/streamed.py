r"""Weighted linear models whose training rows stay on the host: hyper-cleaning of more rows than fit into memory.

With one weight for each row, g is a sum over blocks B of rows,

    g(x, y) = sum_B |B|/n g_B(x_B, y) + r |y|^2 / 2,      g_B(x_B, y) = 1/|B| sum_{i in B} w(x_i) l(W z_i + b, t_i),

and each g_B is a `WeightedLoss` of rows that are in memory: gradients and products with g_yy are summed, and
products with g_xy are concatenated. A gradient, a Hessian product or a cross product is one pass over the file. Memory
holds two blocks and vectors as long as x.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.glm.layouts import Design, design
from proxbi.glm.losses import Loss, Softmax
from proxbi.glm.problem import LinearModel, Rows, WeightedLoss
from proxbi.glm.spectrum import spectrum
from proxbi.regularizers import Regularizer, Zero
from proxbi.rows import RowSource
from proxbi.rows._host import HostBlock, HostRows, Prefetched, require_usable

_SPECTRUM_ROWS = 20_000  # as `glm.spectrum` takes
_ANY_CLASS = 2**31  # of 32 bits: only negative classes are invalid


class StreamedLoss(WeightedLoss):
    """`WeightedLoss` over rows read in blocks, with one weight per row: w is applied to each entry of x.

    Its fields are those of `WeightedLoss`. Example: `streamed_model`.
    """

    def __call__(self, x: PyTree, y: PyTree, data: dict[str, Any]) -> Scalar:
        fit = self._sum(x, y, data, lambda loss, own, rows: loss(own, y, rows))
        return fit + 0.5 * _tree.dot(self._penalties(x, y), jax.tree.map(jnp.square, y))

    def gradient(self, x: PyTree, y: PyTree, data: dict[str, Any]) -> PyTree:
        return self._ridged(x, y, y, self._sum(x, y, data, lambda loss, own, rows: loss.gradient(own, y, rows)))

    def gradient_x(self, x: PyTree, y: PyTree, data: dict[str, Any]) -> PyTree:
        return self._each(x, y, data, lambda loss, own, rows: loss.gradient_x(own, y, rows))

    def hessian(self, x: PyTree, y: PyTree, data: dict[str, Any]) -> Callable[[PyTree], PyTree]:
        def product(v: PyTree) -> PyTree:
            return self._ridged(x, y, v, self._sum(x, y, data, lambda loss, own, rows: loss.hessian(own, y, rows)(v)))

        return product

    def cross(self, x: PyTree, y: PyTree, data: dict[str, Any]) -> Callable[[PyTree], PyTree]:
        return lambda v: self._each(x, y, data, lambda loss, own, rows: loss.cross(own, y, rows)(v))

    def total_curvature(self, x: PyTree, y: PyTree, data: dict[str, Any]) -> Float[Array, "outputs outputs"]:
        return self._sum(x, y, data, lambda loss, own, rows: loss.total_curvature(own, y, rows))

    def _ridged(self, x: PyTree, y: PyTree, v: PyTree, product: PyTree) -> PyTree:
        return jax.tree.map(lambda r, at, found: r * at + found, self._penalties(x, y), v, product)

    def _sum(self, x: Array, y: PyTree, data: dict[str, Any], oracle: Callable[..., PyTree]) -> PyTree:
        """The sum of |B|/n times an oracle of each block."""
        rows = _fitting(data[self.part], x)
        share = rows.source.size / len(rows)
        return rows.sum(lambda block: _tree.scale(share, oracle(*self._at(block, block.counts, x, y))))

    def _each(self, x: Array, y: PyTree, data: dict[str, Any], oracle: Callable[..., Array]) -> Array:
        """The same for oracles with one entry per row; rows that are in two blocks get the same entry in both."""
        rows = _fitting(data[self.part], x)
        share = rows.source.size / len(rows)
        return rows.each(lambda block: share * oracle(*self._at(block, jnp.ones_like(block.counts), x, y)), x)

    def _at(self, block: HostBlock, counts: Array, x: Array, y: PyTree) -> tuple[WeightedLoss, Array, dict[str, Rows]]:
        """The loss of a block, its part of x, and its rows, cast here."""
        dtype = jax.tree.leaves(y)[0].dtype
        features, targets = block.rows
        made = Design(features.astype(dtype), None, len(features), len(features))
        loss = WeightedLoss(self.loss, Partial(_counted, self.weights, counts), Partial(_no_penalty), self.part)
        return loss, block.of(x), {self.part: Rows(made, targets_of(self.loss, targets, dtype))}


def _fitting(rows: HostRows, x: Any) -> HostRows:
    if jnp.shape(x) != (len(rows),):
        raise ValueError(f"x must have one entry for each of the {len(rows)} training rows, got shape {jnp.shape(x)}.")
    return rows


def streamed_model(
    train: RowSource,
    held_out: tuple[Any, Any],
    loss: Loss | None = None,
    *,
    weights: Callable[[Array], Array] = jax.nn.sigmoid,
    ridge: float,
    regularizer: Regularizer | None = None,
    preconditioned: bool = False,
    block: int | None = None,
    check: bool = True,
) -> LinearModel:
    r"""`linear_model` with one weight for each training row. The rows are not loaded: they stay in a memory-mapped file
    (`MemmapRows`), in Parquet (`datasets.ParquetRows`), or in a `RowSource` of your own whose blocks are pairs
    (features, targets).

    $$g(x, y) = \tfrac1n\sum_i w(x_i)\,\ell(W z_i + b, t_i) + \tfrac r2|y|^2, \qquad
      f(x, y) = \tfrac1m\sum_j \ell(W z_j + b, t_j)\ \text{over the rows held out.}$$

    **Arguments:**

    - `train`: the rows. Features of any numeric type are cast block by block.
    - `held_out`: (features, targets), in memory.
    - `loss`: by default `Softmax()`.
    - `weights`: w, an elementwise function of x.
    - `ridge`: r, a number > 0.
    - `regularizer`, `preconditioned`: as in `linear_model`.
    - `block`: rows in memory at a time; by default four megabytes of them.
    - `check`: read all rows once, and raise an error for NaN and invalid classes. Pass False for rows that `shard` will
      distribute: each process then reads and checks only its own rows.

    x has one entry per row; x0 of any other shape is an error.

    >>> from proxbi import MemmapRows
    >>> Z, t = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]], np.float16), np.array([0, 1, 1], np.uint8)
    >>> problem = streamed_model(MemmapRows((Z, t)), (Z[:2], t[:2]), ridge=0.1, block=2)
    >>> print(problem.grad_lower(jnp.zeros(3), jnp.zeros((2, 2))).round(3))
    [[ 0.     0.092] [ 0.    -0.092]]
    """
    known = Softmax() if loss is None else loss
    _check.positive("ridge", _check.as_float(ridge))
    some = jax.ShapeDtypeStruct((3,), jnp.zeros(0).dtype)
    if getattr(jax.eval_shape(weights, some), "shape", None) != some.shape:
        raise ValueError("weights must return one weight for each entry of x: a function such as jax.nn.sigmoid.")
    rows = HostRows(Prefetched(train, block))
    _require_pairs(rows, known)
    if check:
        require_usable("train", rows, classes_of(known))
    data = {"train": rows, "held_out": _in_memory(held_out, known)}
    lower = StreamedLoss(known, Partial(weights), Partial(_constant, _check.as_float(ridge)), "train")
    upper = WeightedLoss(known, Partial(_constant, jnp.asarray(1.0)), Partial(_constant, jnp.asarray(0.0)), "held_out")
    made = LinearModel(upper, lower, Zero() if regularizer is None else regularizer, data)
    return (
        eqx.tree_at(_spectrum_of, made, _spectrum(rows), is_leaf=lambda leaf: leaf is None) if preconditioned else made
    )


def _spectrum_of(model: LinearModel) -> Any:
    return model.spectrum


def _spectrum(rows: HostRows) -> Any:
    """The spectrum of evenly spaced rows."""
    some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SPECTRUM_ROWS)).astype(np.int64))
    features, _ = rows.source.take(some)
    return spectrum(design(np.asarray(features, jnp.zeros(0).dtype), layout="rows"))


def _in_memory(held_out: tuple[Any, Any], loss: Loss) -> Rows:
    features, targets = (jnp.asarray(part) for part in held_out)
    kept = features if features.dtype in (jnp.float32, jnp.float64) else features.astype(float)
    return Rows(design(kept), targets_of(loss, targets, kept.dtype))


def _require_pairs(rows: HostRows, loss: Loss) -> None:
    """Raise an error if the blocks are not pairs of features and targets."""
    shapes = jax.tree.leaves(rows.source.shapes)
    if len(shapes) != 2 or shapes[0].ndim != 2 or shapes[1].ndim != 1:
        given = ", ".join(f"{each.dtype}{list(each.shape)}" for each in shapes)
        raise ValueError(f"train: blocks must be pairs (features, targets), rows by features and rows, got {given}.")
    if isinstance(loss, Softmax) and not jnp.issubdtype(shapes[1].dtype, jnp.integer):
        raise TypeError(f"train: targets must be classes 0, 1, ... for softmax, got {shapes[1].dtype}.")


def classes_of(loss: Loss) -> int | None:
    """The number of classes that targets may have; None if they are numbers."""
    return _ANY_CLASS if isinstance(loss, Softmax) else None


def targets_of(loss: Loss, targets: Any, dtype: Any) -> Any:
    """Targets in the type that the loss needs."""
    return targets.astype(np.int32) if isinstance(loss, Softmax) else targets.astype(dtype).reshape(len(targets), -1)


def _counted(weights: Callable[[Array], Array], counts: Array, x: Array) -> Array:
    return weights(x) * counts.astype(x.dtype)


def _no_penalty(x: Array) -> Array:
    return jnp.zeros((), x.dtype)


def _constant(value: Any, x: PyTree) -> Any:
    return value
