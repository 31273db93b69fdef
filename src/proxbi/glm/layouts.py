r"""The matrix X of a linear model, kept as its two products are fastest where it lies.

    scores    Z = X W'     (rows by outputs)          sums    G = R' X     (outputs by features)

Both read all of X, which is what a step costs; everything else is as small as Z. Where R follows from Z row by row, as
in gradients and Hessian products, `through` takes both.

- **CPU**: a product is fast where the summed axis is the contiguous one. X is kept with its transpose: Z = X (W') and
  G' = X' R. And both are computed for whole vectors of outputs: 16 of them take less time than 10.
- **Accelerators**: one X. R' X sums over millions of rows with few outputs, which leaves most of the device idle: it is
  computed for blocks of rows, all at once, and the blocks are summed.
- **NVIDIA GPUs**: `proxbi.glm.kernel` reads X once for both products.
- **bfloat16**: X takes half the memory, and half the time to read. A float32 is the sum of three bfloat16: so are W and
  R, as three times as many outputs, and products of two bfloat16 are exact in float32. So X is rounded, once, and
  nothing else is.
- **Sparse** (BCOO): as it is.

XLA would move transposes through products, and so undo the choice; `optimization_barrier` keeps them apart.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO, bcoo_dot_general
from jax.tree_util import Partial
from jaxtyping import Array, Float

from proxbi import _check

Layout = Literal["rows", "both", "blocks", "kernel"]
Pair = tuple[Float[Array, "outputs features"], Float[Array, " outputs"]]

_VECTOR = 32  # bytes: what a CPU adds and multiplies at once (AVX2; twice that where there is AVX-512)
_LEAST_BLOCK, _MOST_BLOCK = 2_000, 20_000  # rows; measured on an H200, and alike in between
_PARTS = 3  # bfloat16 in a float32: 24 bits, 8 in each

_apart = jax.lax.optimization_barrier


class Design(eqx.Module):
    """X, rows by features, and its products; made by `design`."""

    matrix: Any
    """X, with rows of zeros at its end where blocks ask for them; an array, or a BCOO."""
    transpose: Array | None
    """X', in the layout "both"."""
    rows: int = eqx.field(static=True)
    block: int = eqx.field(static=True)
    kernel: bool = eqx.field(static=True, default=False)
    """Whether `through` reads X once, on a GPU that can."""

    @property
    def features(self) -> int:
        """How many columns X has."""
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
        found = jnp.einsum("kbc,kbd->kcd", right, blocks, preferred_element_type=residuals.dtype)
        return _together(jnp.sum(found, axis=0).T, residuals.shape[1]).T

    def through(
        self, weights: Float[Array, "outputs features"], bias: Float[Array, " outputs"], rowwise: Partial
    ) -> Pair:
        """(R' X, R' 1) with R = rowwise(X W' + 1 b').

        With a kernel, `rowwise` must be as `proxbi.glm.kernel.one_read` needs it; else it may be any function.
        """
        if not self.kernel:
            return _two_products(self, weights, bias, rowwise)
        return _through(self, weights, bias, rowwise)

    def _product(self, left: Array, right: Float[Array, "inner outputs"]) -> Float[Array, "outer outputs"]:
        """`left` times `right`, in the dtype of `right`."""
        outputs, dtype = right.shape[1], right.dtype
        left, right = _matched(left, right)
        columns = right.shape[1]
        if self.transpose is not None:
            right = _apart(_extended(right, _whole_vectors(columns, dtype), axis=1))
        product = jnp.dot(left, right, preferred_element_type=dtype)
        product = _apart(product) if self.transpose is not None else product
        return _together(product[:, :columns], outputs)


def _two_products(design: Design, weights: Array, bias: Array, rowwise: Callable[[Array], Array]) -> Pair:
    """`Design.through` as it is written."""
    residuals = rowwise(design.scores(weights) + bias)
    return design.sums(residuals), jnp.sum(residuals, axis=0)


@jax.custom_jvp
def _through(design: Design, weights: Array, bias: Array, rowwise: Partial) -> Pair:
    """By the kernel. Its derivatives are those of the two products, which JAX knows how to take."""
    return _by_kernel(design, weights, bias, rowwise)


@_through.defjvp
def _through_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Pair, Pair]:
    return _through(*primals), jax.jvp(_two_products, primals, tangents)[1]


@jax.custom_batching.custom_vmap
def _by_kernel(design: Design, weights: Array, bias: Array, rowwise: Partial) -> Pair:
    from proxbi.glm import kernel  # only here: Pallas takes a while to import

    if not kernel.fits(design.matrix, weights):
        return _two_products(design, weights, bias, rowwise)
    return jax.lax.platform_dependent(
        weights,
        bias,
        rowwise,
        cuda=partial(kernel.one_read, design.matrix, design.rows),
        default=partial(_two_products, design),
    )


@_by_kernel.def_vmap
def _many_at_once(size: int, batched: Any, *arguments: Any) -> tuple[Pair, tuple[bool, bool]]:
    """Many models share a read of X: `vmap` makes one product of few outputs one of many."""
    leaves, structure = jax.tree.flatten(arguments)
    axes = [0 if own else None for own in jax.tree.leaves(batched)]

    def one(*leaves: Any) -> Pair:
        return _two_products(*jax.tree.unflatten(structure, leaves))

    return jax.vmap(one, in_axes=axes, axis_size=size)(*leaves), (True, True)


def design(matrix: Any, *, layout: Layout | None = None, dtype: Any = None) -> Design:
    """X as it is fastest on the device where it lies: an array goes where JAX puts it, a JAX array stays.

    **Arguments:**

    - `matrix`: rows by features, an array or a `jax.experimental.sparse.BCOO`.
    - `layout`: "both" keeps X and its transpose, twice the memory, and is the default on a CPU; "blocks" is that
      elsewhere; "kernel" is "blocks" with a kernel for `through`, on NVIDIA GPUs; "rows" takes products as they come,
      which is best where `vmap` makes many outputs out of few.
    - `dtype`: how X is stored: `jnp.bfloat16` takes half the memory of float32, and half the time of a GPU. None leaves
      it as it is.

    >>> X = design(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> print(X.scores(jnp.array([[1.0, -1.0]])), X.sums(jnp.array([[1.0], [0.5]])))
    [[-1.] [-1.]] [[2.5 4. ]]
    """
    if layout is not None and layout not in get_args(Layout):
        raise ValueError(f"layout must be one of {', '.join(get_args(Layout))}, got {layout!r}.")
    if isinstance(matrix, BCOO):
        return _sparse(matrix, layout, dtype)
    kept = _check.as_float(matrix)
    if kept.ndim != 2 or 0 in kept.shape:
        raise ValueError(f"matrix must be rows by features, and not empty; it has shape {kept.shape}.")
    kept = kept if dtype is None else kept.astype(dtype)
    rows, layout = len(kept), layout or ("both" if _platform(kept) == "cpu" else "blocks")
    block = _block(rows) if layout in ("blocks", "kernel") else rows
    kept = _extended(kept, -(-rows // block) * block, axis=0)
    return Design(kept, jnp.array(kept.T) if layout == "both" else None, rows, block, kernel=layout == "kernel")


def _sparse(matrix: BCOO, layout: Layout | None, dtype: Any) -> Design:
    if layout is not None:
        raise ValueError(f"layout must not be given for a sparse matrix, got {layout!r}.")
    if matrix.n_batch or matrix.n_dense or matrix.ndim != 2:
        raise ValueError("matrix must have two sparse axes, rows and features, and no others.")
    entries = matrix.data if dtype is None else matrix.data.astype(dtype)
    return Design(BCOO((entries, matrix.indices), shape=matrix.shape), None, matrix.shape[0], 1)


def _platform(array: Array) -> str:
    """Where the array lies; inside `jit`, where it will."""
    return jax.default_backend() if isinstance(array, jax.core.Tracer) else next(iter(array.devices())).platform


def _block(rows: int) -> int:
    """Rows in a block: a divisor of all rows if there is one, which then need not be copied to add some."""
    largest = min(rows, _MOST_BLOCK)
    divisors = (block for block in range(largest, _LEAST_BLOCK - 1, -1) if rows % block == 0)
    return next(divisors, largest)


def _whole_vectors(columns: int, dtype: Any) -> int:
    """So many columns, or a few more that fill vectors; up to half a vector is as fast as it is."""
    width = _VECTOR // jnp.dtype(dtype).itemsize
    return columns if columns <= width // 2 else -(-columns // width) * width


def _extended(array: Array, size: int, axis: int) -> Array:
    """With zeros at the end of an axis, up to `size`."""
    missing = size - array.shape[axis]
    return jnp.pad(array, [(0, missing if k == axis else 0) for k in range(array.ndim)]) if missing else array


def _matched(matrix: Array, right: Float[Array, "inner outputs"]) -> tuple[Array, Float[Array, "inner columns"]]:
    """Both in one dtype: that of `right`, or bfloat16 with the parts of `right` side by side."""
    if matrix.dtype != jnp.bfloat16 or right.dtype != jnp.float32:
        return matrix.astype(right.dtype), right
    return matrix, jnp.concatenate(bfloat16_parts(right), axis=1)


def _rounded(array: Array) -> Array:
    """To bfloat16 and back. XLA may drop a conversion, but not this."""
    return jax.lax.reduce_precision(array, exponent_bits=8, mantissa_bits=7)


def bfloat16_parts(array: Float[Array, "*shape"], rounded: Callable[[Array], Array] = _rounded) -> list[Array]:
    """Three bfloat16 whose sum is a float32."""
    parts = []
    for _ in range(_PARTS):
        parts.append(rounded(array))
        array = array - parts[-1]
    return [part.astype(jnp.bfloat16) for part in parts]


def _together(product: Float[Array, "outer columns"], outputs: int) -> Float[Array, "outer outputs"]:
    """The sum of the parts."""
    return product if product.shape[1] == outputs else jnp.sum(product.reshape(len(product), -1, outputs), axis=1)
