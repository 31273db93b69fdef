"""Where the vectors of a run on a mesh are: those with an entry for each row are spread, all others are copies."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PyTree

from proxbi import _check
from proxbi._place import Place
from proxbi.distributed import _layout, _ranks
from proxbi.distributed._digest import described, digests
from proxbi.distributed._own_rows import require_own_rows
from proxbi.distributed._parts import enlarged
from proxbi.rows._own import has_rows

Axis = tuple[int, int] | None
"""Of a leaf: which of its axes is that of the rows, and how many entries each has; None where none is."""


@dataclass(frozen=True)
class RowPlace(Place):
    """A mesh with n rows in N places."""

    mesh: Mesh
    count: int
    places: int
    axes: tuple[Axis, ...] | None = None
    """Of the leaves of the solver's state, once a run has begun."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return jax.process_index() == 0

    @property
    def shared(self) -> bool:
        """Whether the mesh has devices of other processes."""
        return self.mesh.is_multi_process

    def entered(self, problem: Any, solver: Any, x0: PyTree, y0: PyTree) -> tuple[Any, PyTree, PyTree]:
        """x0 padded and spread, y0 on all devices, and the problem with what it has to know of both."""
        x0, y0 = _check.float_tree("x0", x0), _check.float_tree("y0", y0)
        self.require_alike(jax=jax.__version__, solver=jax.tree.structure(solver), x0=described(x0), y0=described(y0))
        self._require_length(x0)
        x = jax.tree.map(lambda leaf: self._placed(leaf, self._axis_of_x(leaf)), x0)
        y = jax.tree.map(lambda leaf: self._placed(leaf, None), y0)
        self._require_own_rows(problem, x0, y0)
        first_rows = jax.tree.map(lambda leaf: leaf[0] if self._axis_of_x(leaf) else leaf, x0)
        begun = problem.filled_by(jax.tree.map(lambda leaf: self._placed(leaf, None), first_rows))
        axes = _row_axes(begun, solver, x, y, self.places)
        return replace(begun, layout=replace(self, axes=axes)), x, y

    def places_for(self, rows: int) -> int:
        """N for n rows, and others as they are."""
        return self.places if rows == self.count else rows

    def kept(self, state: PyTree) -> PyTree:
        """With the shardings of its leaves as constraints."""
        leaves, structure = jax.tree.flatten(state)
        axes = self._axes(leaves)
        where = [_layout.sharding(self.mesh, None if axis is None else axis[0]) for axis in axes]
        return jax.tree.unflatten(structure, map(jax.lax.with_sharding_constraint, leaves, where))

    def shapes(self, state: PyTree) -> PyTree:
        """Without padding."""
        leaves, structure = jax.tree.flatten(state)
        return jax.tree.unflatten(structure, map(self._shape, leaves, self._axes(leaves)))

    def put(self, state: PyTree) -> PyTree:
        """Padded and spread."""
        leaves, structure = jax.tree.flatten(state)
        return jax.tree.unflatten(structure, map(self._placed, leaves, self._axes(leaves)))

    def fetched(self, state: PyTree) -> PyTree:
        """NumPy arrays, without padding, in every process."""
        leaves, structure = jax.tree.flatten(state)
        return jax.tree.unflatten(structure, map(self._unpadded, leaves, self._axes(leaves)))

    def fetched_x(self, x: PyTree) -> PyTree:
        """x without padding, in every process."""
        of = [(0, 1) if has_rows(leaf, self.places) else None for leaf in jax.tree.leaves(x)]
        leaves, structure = jax.tree.flatten(x)
        return jax.tree.unflatten(structure, map(jnp.asarray, map(self._unpadded, leaves, of)))

    def fetched_y(self, y: PyTree) -> PyTree:
        """y, in every process."""
        return jax.tree.map(lambda leaf: jnp.asarray(_layout.to_host(leaf)), y)

    # Householder's QR of a tall matrix needs all of it in one place. Here every device takes that of its own rows,
    # A_i = Q_i R_i, and all devices that of the R_i on top of one another, R = P T: the columns of Q_i P_i are
    # orthonormal, and span what those of A do (TSQR; Demmel, Grigori, Hoemmen, Langou, 2012). The R_i travel as the
    # summands of one array, in which each device fills its own part: one sum of numbers that do not grow with n.
    def orthonormal(self, columns: Float[Array, "n r"]) -> Float[Array, "n k"]:
        """By a QR decomposition on every device, and one of what they leave."""
        if columns.shape[0] % self.places:
            return jnp.linalg.qr(columns)[0]
        devices = self.mesh.size

        def local(part: Array) -> Array:
            own, triangle = jnp.linalg.qr(part)
            rank = jax.lax.axis_index(_layout.AXIS)
            mine = jnp.zeros((devices, *triangle.shape), triangle.dtype).at[rank].set(triangle)
            stack = jax.lax.psum(mine, _layout.AXIS)
            turned = jnp.linalg.qr(stack.reshape(-1, triangle.shape[1]))[0]
            return own @ turned.reshape(devices, triangle.shape[0], -1)[rank]

        spec = PartitionSpec(_layout.AXIS, None)
        return jax.shard_map(local, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)(columns)

    def agreed(self, numbers: list[int]) -> list[int]:
        """Of the lowest rank that has one which is not 0."""
        return _ranks.first_nonzero(numbers) if self.shared else numbers

    def by_first(self, action: Callable[[], None]) -> None:
        """By rank 0."""
        if self.shared:
            _ranks.by_first(action)
        else:
            action()

    def together(self) -> AbstractContextManager[None]:
        """A `RankLostError` where a process is lost."""
        return _ranks.together() if self.shared else nullcontext()

    def require_alike(self, **settings: Any) -> None:
        """An error on all ranks, which names the settings and the ranks that differ."""
        if self.shared:
            _ranks.require_alike(settings)

    def described(self, problem: Any) -> dict[str, Any]:
        """With digests in the place of arrays, which do not depend on the mesh."""
        plain = problem.filled_by(None)
        names = ("upper", "lower", "regularizer", "data", "lower_regularizer")
        return {"rows": self.count} | {name: digests(getattr(plain, name)) for name in names}

    def _require_own_rows(self, problem: Any, x0: PyTree, y0: PyTree) -> None:
        """On all ranks: each looks at rows of its own."""
        error: ValueError | None = None
        try:
            require_own_rows(problem, x0, y0, self.count)
        except ValueError as caught:
            error = caught
        self.require_alike(what_upper_and_lower_say_of_their_first_rows=str(error))
        if error is not None:
            raise error

    def _require_length(self, x0: PyTree) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(x0):
            if has_rows(leaf, self.places) and self.places != self.count:
                raise ValueError(
                    f"x0{jax.tree_util.keystr(path)} has {self.places} entries, as many as there are places for the "
                    f"{self.count} rows on this mesh: it could be taken for weights of rows. Reshape it to (1, ...)."
                )

    def _axis_of_x(self, leaf: Any) -> Axis:
        return (0, 1) if has_rows(leaf, self.count) else None

    def _shape(self, leaf: Any, axis: Axis) -> jax.ShapeDtypeStruct:
        size = list(leaf.shape)
        if axis is not None:
            size[axis[0]] = axis[1] * self.count
        return jax.ShapeDtypeStruct(size, leaf.dtype)

    def _placed(self, leaf: Any, axis: Axis) -> Array:
        if axis is None:
            return _layout.on_all(self.mesh, _layout.to_host(leaf))
        return _layout.padded(self.mesh, _layout.to_host(leaf), axis[0], axis[1] * self.places)

    def _unpadded(self, leaf: Any, axis: Axis) -> np.ndarray:
        host = _layout.to_host(leaf)
        return host if axis is None else host[(slice(None),) * axis[0] + (slice(axis[1] * self.count),)]

    def _axes(self, leaves: list[Any]) -> tuple[Axis, ...]:
        if self.axes is None or len(self.axes) != len(leaves):
            raise RuntimeError("this state does not belong to the run that was begun on this mesh.")
        return self.axes


# Which axes of a state are those of rows? Those that grow with the number of places, and with nothing else: the state
# that the solver would make of two larger problems tells. Nothing is computed for that but shapes.
def _row_axes(problem: Any, solver: Any, x: PyTree, y: PyTree, places: int) -> tuple[Axis, ...]:
    factor = max(2, _LARGE // places)
    shapes = [_state_shapes(problem, solver, x, y, places, factor + more) for more in (0, 1)]
    return tuple(_axis(a, b, factor * places, places) for a, b in zip(*shapes, strict=True))


_LARGE = 1_000_000  # places: more than the numbers of pairs, batches and the like that a state may have as axes


def _state_shapes(problem: Any, solver: Any, x: PyTree, y: PyTree, places: int, factor: int) -> list[tuple[int, ...]]:
    larger = enlarged(problem, places, factor)

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        rows = has_rows(leaf, places)
        return jax.ShapeDtypeStruct((factor * places, *leaf.shape[1:]) if rows else leaf.shape, leaf.dtype)

    state = jax.eval_shape(solver.init, larger, jax.tree.map(shape, x), y)
    return [leaf.shape for leaf in jax.tree.leaves(state)]


def _axis(a: tuple[int, ...], b: tuple[int, ...], large: int, places: int) -> Axis:
    for number, (before, after) in enumerate(zip(a, b, strict=True)):
        entries = (after - before) // places
        if entries > 0 and before == entries * large and after - before == entries * places:
            return number, entries
    return None
