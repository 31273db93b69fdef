r"""A kernel for NVIDIA GPUs that reads X once for a gradient or a Hessian product of a linear model.

    G = R' X     and     R' 1     with     R = rowwise(X W' + 1 b'),

where `rowwise` takes each row by itself: l'(S) for a gradient, l''(S) S(v) for a Hessian product. As two products this
reads X twice, and with millions of rows the reading of X is nearly all that it costs. Here a tile of rows is read,
chunk by chunk of its features; its scores are summed over the chunks, R follows from them, and R' X of the tile is
taken from what was read. The sums stay in the registers of a program instance while it walks over its tiles: a few
hundred instances share all tiles, and what each of them has summed is added up at the end.

- **float32**: products are taken as three products of TF32 (11 bits each), which together err about as float32 does.
- **bfloat16**: X was rounded once. W and R are split into three bfloat16, and nothing else is rounded.
- **Outputs** are filled up to 16, the least that the units for products take. Those that are not there have the score
  `_ABSENT`, which gets no probability from a softmax; what they sum up to is dropped.

Written with Pallas for Triton. `interpret=True` runs it anywhere, slowly: for tests.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.tree_util import Partial
from jaxtyping import Array, Float

from proxbi.glm.layouts import bfloat16_parts

_LEAST_OUTPUTS = 16  # of a product in Triton
_MOST_SUMS = 2**14  # outputs by features that fit into the registers of an instance, beside a tile
_ABSENT = -1e30
_THREE_TF32 = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3


class Tiling(NamedTuple):
    """How the work is cut; rows and features are powers of two."""

    rows: int
    """In a tile."""
    features: int
    """In a chunk."""
    warps: int
    """Of 32 threads, in an instance."""
    instances: int
    """How many walk over the tiles: a few for each multiprocessor, of which an H200 has 132."""
    keep: bool
    """Whether a tile stays in registers between its two uses, or is read again from the cache."""


FLOAT32, BFLOAT16 = Tiling(16, 64, 4, 264, True), Tiling(32, 64, 4, 264, True)


class _Shape(NamedTuple):
    """What a program instance knows."""

    rows: int
    features: int
    outputs: int
    filled: int
    cut: Tiling
    interpret: bool

    @property
    def chunks(self) -> range:
        return range(-(-self.features // self.cut.features))

    @property
    def instances(self) -> int:
        return min(self.cut.instances, -(-self.rows // self.cut.rows))

    @property
    def walk(self) -> int:
        """Tiles of an instance."""
        return -(-self.rows // (self.cut.rows * self.instances))


def fits(matrix: Any, weights: Float[Array, "outputs features"]) -> bool:
    """Whether the kernel takes these: X in float32 or bfloat16, W in float32, and not too many sums."""
    outputs, features = weights.shape
    known = matrix.dtype in (jnp.float32, jnp.bfloat16) and weights.dtype == jnp.float32
    return known and _filled(outputs) * features <= _MOST_SUMS


def one_read(
    matrix: Float[Array, "padded features"],
    rows: int,
    weights: Float[Array, "outputs features"],
    bias: Float[Array, " outputs"],
    rowwise: Partial,
    *,
    tiling: Tiling | None = None,
    interpret: bool = False,
) -> tuple[Float[Array, "outputs features"], Float[Array, " outputs"]]:
    r"""$(R^\top X, R^\top 1)$ with $R = \text{rowwise}(X W^\top + 1 b^\top)$, over the first `rows` rows of the matrix.

    **Arguments:**

    - `rowwise`: a `Partial` whose leaves have the rows as their first axis, and the outputs, or nothing, as a second.
      It is called with the scores of a tile, and the rows of its leaves that belong to it.
    - `tiling`: how the work is cut; by default as was fastest on an H200.
    - `interpret`: run by Pallas' interpreter, on any device.

    >>> X, w = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 0.5])
    >>> weighted = Partial(lambda w, scores: w[:, None] * scores, w)
    >>> print(one_read(X, 2, jnp.array([[1.0, -1.0]]), jnp.zeros(1), weighted, interpret=True)[0])
    [[-2.5 -4. ]]
    """
    parts = jnp.stack(bfloat16_parts(weights)) if matrix.dtype == jnp.bfloat16 else weights[None]
    outputs, features = weights.shape
    cut = tiling or (BFLOAT16 if matrix.dtype == jnp.bfloat16 else FLOAT32)
    shape = _Shape(rows, features, outputs, _filled(outputs), cut, interpret)
    wide, absent = len(shape.chunks) * cut.features, shape.filled - outputs
    parts = jnp.pad(jnp.swapaxes(parts, 1, 2), [(0, 0), (0, wide - features), (0, absent)])
    bias = jnp.pad(bias, (0, absent), constant_values=_ABSENT)
    leaves, structure = jax.tree.flatten(rowwise)

    def instance(*refs: Any) -> None:
        _walk(shape, structure, *refs)

    sums, totals = pl.pallas_call(
        instance,
        grid=(shape.instances,),
        in_specs=[pl.BlockSpec()] * (3 + len(leaves)),  # all of each: an instance takes what it needs
        out_specs=[
            pl.BlockSpec((None, shape.filled, wide), lambda k: (k, 0, 0)),
            pl.BlockSpec((None, shape.filled), lambda k: (k, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((shape.instances, shape.filled, wide), jnp.float32),
            jax.ShapeDtypeStruct((shape.instances, shape.filled), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=cut.warps, num_stages=1),  # nothing to pipeline: no inner loop
        interpret=interpret,
    )(matrix, parts, bias, *leaves)
    return jnp.sum(sums, axis=0)[:outputs, :features], jnp.sum(totals, axis=0)[:outputs]


def _walk(shape: _Shape, structure: Any, *refs: Any) -> None:
    """One program instance: the sums over its tiles."""
    matrix, weights, bias, *leaves, sums, totals = refs
    own = pl.program_id(0)

    def tile(k: Array, found: tuple[tuple[Array, ...], Array]) -> tuple[tuple[Array, ...], Array]:
        at = (k * shape.instances + own) * shape.cut.rows + jnp.arange(shape.cut.rows)
        chunks, scores = _scores(shape, matrix, weights, bias, at)
        rowwise = jax.tree.unflatten(structure, [_rows_of(shape, leaf, at) for leaf in leaves])
        there = (at < shape.rows)[:, None] & (jnp.arange(shape.filled) < shape.outputs)[None]
        residuals = jnp.where(there, rowwise(scores), 0)
        parts = bfloat16_parts(residuals, _rounded) if matrix.dtype == jnp.bfloat16 else [residuals]
        again = chunks if shape.cut.keep else [_chunk(shape, matrix, at, c, last=True) for c in shape.chunks]
        added = [sum(_dot(shape, part, chunk, 0, 0) for part in parts) for chunk in again]
        return tuple(a + b for a, b in zip(found[0], added, strict=True)), found[1] + jnp.sum(residuals, axis=0)

    none = tuple(jnp.zeros((shape.filled, shape.cut.features), jnp.float32) for _ in shape.chunks)
    start = none, jnp.zeros(shape.filled, jnp.float32)
    by_chunk, totals[...] = jax.lax.fori_loop(0, shape.walk, tile, start)
    for c in shape.chunks:
        sums[:, pl.ds(c * shape.cut.features, shape.cut.features)] = by_chunk[c]


def _scores(shape: _Shape, matrix: Any, weights: Any, bias: Any, at: Array) -> tuple[list[Array], Array]:
    """The chunks of a tile, and its scores."""
    scores = jnp.broadcast_to(bias[...][None], (shape.cut.rows, shape.filled))
    chunks = []
    for c in shape.chunks:
        chunks.append(_chunk(shape, matrix, at, c, last=shape.cut.keep))
        for part in range(weights.shape[0]):
            right = weights[part, pl.ds(c * shape.cut.features, shape.cut.features), :]
            scores = scores + _dot(shape, chunks[-1], right, 1, 0)
    return chunks, scores


def _chunk(shape: _Shape, matrix: Any, at: Array, c: int, last: bool) -> Array:
    """Some features of a tile. The first reading differs from the last by how the cache is to treat it: else the
    compiler would see that both are the same, and keep what it has read, where there is no room.
    """
    columns = c * shape.cut.features + jnp.arange(shape.cut.features)
    mask = jnp.broadcast_to((at < shape.rows)[:, None], (shape.cut.rows, shape.cut.features))
    mask = mask if (c + 1) * shape.cut.features <= shape.features else mask & (columns < shape.features)[None]
    policy = "evict_first" if last else "evict_last"
    return triton.load(matrix.at[at[:, None], columns[None]], mask=mask, other=0, eviction_policy=policy)


def _rows_of(shape: _Shape, leaf: Any, at: Array) -> Array:
    """The rows of a leaf, with zeros for rows and outputs that are not there."""
    if leaf.ndim == 1:
        return triton.load(leaf.at[at], mask=at < shape.rows, other=0)
    columns = jnp.arange(shape.filled)
    mask = (at < shape.rows)[:, None] & (columns < leaf.shape[1])[None]
    return triton.load(leaf.at[at[:, None], columns[None]], mask=mask, other=0)


def _dot(shape: _Shape, a: Array, b: Array, of_a: int, of_b: int) -> Array:
    """Summed over these axes, in float32."""
    exact = a.dtype == jnp.bfloat16 or shape.interpret
    a, b = (a, b.astype(a.dtype)) if of_a == 1 else (a.astype(b.dtype), b)
    numbers = ((of_a,), (of_b,)), ((), ())
    precision = None if exact else _THREE_TF32
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)


def _rounded(array: Array) -> Array:
    """To bfloat16 and back: Triton knows no `reduce_precision`, and drops no conversion."""
    return array.astype(jnp.bfloat16).astype(jnp.float32)


def _filled(outputs: int) -> int:
    """The next power of two."""
    return max(_LEAST_OUTPUTS, 1 << (outputs - 1).bit_length())
