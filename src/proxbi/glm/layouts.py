r"""The feature matrix X of a linear model, stored so that its two products are fast on its device.

    scores    Z = X W'     (rows by outputs)          sums    G = R' X     (outputs by features)

Both read all of X, which dominates the cost of a step; everything else is as small as Z.

- **CPU**: a product is fast if the summed axis is contiguous. X is stored with its transpose: Z = X (W') and G' = X' R.
  Both are computed for whole SIMD vectors of outputs: 16 outputs take less time than 10.
- **Accelerators**: one X. R' X sums over millions of rows with few outputs, which leaves most of the device idle. So it
  is computed for all blocks of rows at once, and the blocks are summed. By default XLA rounds float32 to the 11 bits of
  TF32 there, too few for a hypergradient. On a GPU scores are three products in TF32, which together are as accurate as
    float32 and faster; sums are float32.
- **bfloat16**: X takes half the memory, and half the time to read. A float32 is the sum of three bfloat16.
  W and R are split so, into three times as many outputs, and products of two bfloat16 are exact in float32. So X is
  rounded once, and nothing else.
- **Sparse** (BCOO): stored as given.

XLA would move transposes through products and undo the layout; `optimization_barrier` prevents that.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO, bcoo_dot_general
from jaxtyping import Array, Float

from proxbi import _check

Layout = Literal["rows", "both", "blocks"]

_VECTOR = 32  # bytes of a SIMD register (AVX2; twice that with AVX-512)
_LEAST_BLOCK, _MOST_BLOCK = 2_000, 4_000  # rows; on an H200 20,000 take a tenth longer
_GPUS = ("gpu", "cuda")  # NVIDIA's, as JAX calls them; AMD's have no TF32
_PARTS = 3  # bfloat16 in a float32: 24 bits, 8 in each

_THREE_TF32 = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3

_apart = jax.lax.optimization_barrier


class Design(eqx.Module):
    """X, rows by features, and its products; made by `design`.

    Example: `design`.
    """

    matrix: Any
    """X, padded with rows of zeros if blocks need them; an array, or a BCOO."""
    transpose: Array | None
    """X', in the layout "both"."""
    rows: int = eqx.field(static=True)
    """Rows of X, without padding."""
    block: int = eqx.field(static=True)
    """Rows in a block, in the layout "blocks"; 0 otherwise."""
    on_gpu: bool = eqx.field(static=True, default=False)
    """Whether the products are those for a GPU."""

    @property
    def features(self) -> int:
        """The number of columns of X."""
        return self.matrix.shape[1]

    def scores(self, weights: Float[Array, "outputs features"]) -> Float[Array, "rows outputs"]:
        """X W'."""
        if isinstance(self.matrix, BCOO):
            return self.matrix @ weights.T
        return self._product(self.matrix, weights.T)[: self.rows]

    def sums(self, residuals: Float[Array, "rows outputs"]) -> Float[Array, "outputs features"]:
        """R' X."""
        if isinstance(self.matrix, BCOO):
            return bcoo_dot_general(self.matrix, residuals, dimension_numbers=(((0,), (0,)), ((), ()))).T
        residuals = _extended(residuals, len(self.matrix), axis=0)
        if self.transpose is not None:
            return self._product(self.transpose, residuals).T
        matrix, right = _matched(self.matrix, residuals)
        blocks = matrix.reshape(-1, self.block, self.features)
        right = right.reshape(len(blocks), self.block, -1)
        precision, dtype = _exactly(blocks), residuals.dtype
        found = jnp.einsum("kbc,kbd->kcd", right, blocks, precision=precision, preferred_element_type=dtype)
        return _together(jnp.sum(found, axis=0).T, residuals.shape[1]).T

    def _product(self, left: Array, right: Float[Array, "inner outputs"]) -> Float[Array, "outer outputs"]:
        """`left` times `right`, in the dtype of `right`."""
        outputs, dtype = right.shape[1], right.dtype
        left, right = _matched(left, right)
        columns = right.shape[1]
        if self.transpose is not None:
            right = _apart(_extended(right, _whole_vectors(columns, dtype), axis=1))
        precision = _THREE_TF32 if self.on_gpu and left.dtype == jnp.float32 else _exactly(left)
        product = jnp.dot(left, right, precision=precision, preferred_element_type=dtype)
        product = _apart(product) if self.transpose is not None else product
        return _together(product[:, :columns], outputs)


def design(matrix: Any, *, layout: Layout | None = None, dtype: Any = None) -> Design:
    """X in the layout that is fastest on its device: a NumPy array goes to the default device, a JAX array stays.

    **Arguments:**

    - `matrix`: rows by features, an array or a `jax.experimental.sparse.BCOO`.
    - `layout`: "both" keeps X and its transpose, in twice the memory, and is the default on a CPU; "blocks" is the
      default elsewhere; "rows" computes plain products, which is best if `vmap` turns few outputs into many.
    - `dtype`: of the stored X: `jnp.bfloat16` takes half the memory of float32, and half the time on a GPU. None keeps
      the dtype.

    **Returns:** a `Design`, with the products X W' and R' X.

    >>> X = design(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> print(X.scores(jnp.array([[1.0, -1.0]])), X.sums(jnp.array([[1.0], [0.5]])))
    [[-1.] [-1.]] [[2.5 4. ]]
    """
    if layout not in (None, "rows", "both", "blocks"):
        raise ValueError(f'layout must be "rows", "both" or "blocks", got {layout!r}.')
    if isinstance(matrix, BCOO):
        return _sparse(matrix, layout, dtype)
    kept = _check.as_float(matrix)
    if kept.ndim != 2 or 0 in kept.shape:
        raise ValueError(f"matrix must be rows by features, and not empty; it has shape {kept.shape}.")
    kept = kept if dtype is None else kept.astype(dtype)
    rows, layout = len(kept), layout or ("both" if _platform(kept) == "cpu" else "blocks")
    block = _block(rows) if layout == "blocks" else rows
    kept = _extended(kept, -(-rows // block) * block, axis=0)
    transpose = jnp.array(kept.T) if layout == "both" else None
    return Design(kept, transpose, rows, block, on_gpu=_platform(kept) in _GPUS)


def _sparse(matrix: BCOO, layout: Layout | None, dtype: Any) -> Design:
    if layout is not None:
        raise ValueError(f"layout must not be given for a sparse matrix, got {layout!r}.")
    if matrix.n_batch or matrix.n_dense or matrix.ndim != 2:
        raise ValueError("matrix must have two sparse axes, rows and features, and no others.")
    entries = matrix.data if dtype is None else matrix.data.astype(dtype)
    return Design(BCOO((entries, matrix.indices), shape=matrix.shape), None, matrix.shape[0], 1)


def _platform(array: Array) -> str:
    """The platform of the array; inside `jit`, of the program."""
    return jax.default_backend() if isinstance(array, jax.core.Tracer) else next(iter(array.devices())).platform


def _block(rows: int) -> int:
    """Rows per block: a divisor of the number of rows if there is one, so that no copy with padding is needed."""
    largest = min(rows, _MOST_BLOCK)
    divisors = (block for block in range(largest, _LEAST_BLOCK - 1, -1) if rows % block == 0)
    return next(divisors, largest)


def _exactly(array: Array) -> str | None:
    """The precision of a product: all bits of its factors. For bfloat16 the default is exact already."""
    return None if array.dtype == jnp.bfloat16 else "highest"


def _whole_vectors(columns: int, dtype: Any) -> int:
    """The number of columns, rounded up to fill SIMD vectors; up to half a vector gains nothing from it."""
    width = _VECTOR // jnp.dtype(dtype).itemsize
    return columns if columns <= width // 2 else -(-columns // width) * width


def _extended(array: Array, size: int, axis: int) -> Array:
    """Padded with zeros at the end of an axis, up to `size`."""
    missing = size - array.shape[axis]
    return jnp.pad(array, [(0, missing if k == axis else 0) for k in range(array.ndim)]) if missing else array


def _matched(matrix: Array, right: Float[Array, "inner outputs"]) -> tuple[Array, Float[Array, "inner columns"]]:
    """Both in one dtype: that of `right`, or bfloat16 with the parts of `right` side by side."""
    if matrix.dtype != jnp.bfloat16 or right.dtype != jnp.float32:
        return matrix.astype(right.dtype), right
    parts, left = [], right
    for _ in range(_PARTS):
        parts.append(jax.lax.reduce_precision(left, exponent_bits=8, mantissa_bits=7))  # XLA may drop a conversion
        left = left - parts[-1]
    return matrix, jnp.concatenate(parts, axis=1).astype(jnp.bfloat16)


def _together(product: Float[Array, "outer columns"], outputs: int) -> Float[Array, "outer outputs"]:
    """The sum of the parts."""
    return product if product.shape[1] == outputs else jnp.sum(product.reshape(len(product), -1, outputs), axis=1)
