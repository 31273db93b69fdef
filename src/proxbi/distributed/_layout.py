r"""How rows lie on a mesh: in N >= n places of which every device has the same number, in the order of the rows.

N depends on n alone: a run goes on with the same numbers, up to rounding, on another number of devices. It is a
multiple of `UNITS`, and so of the numbers of devices that divide `UNITS`. The N - n last places hold copies of the last
row, so that no function meets a row that it could not stand; they have weight 0, and their entries of x are 0 and stay
0.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, PyTree

AXIS = "rows"
UNITS = 384  # 3 x 128: for 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192 and 384 devices
_MOST_BLOCK = 20_000  # rows of a block of `glm.Design`: see `glm.layouts`


class ShardWarning(UserWarning):
    """A mesh on which a run may wait for ever."""


def block_of(rows: int) -> int:
    """Rows in a block: every device has a whole number of them."""
    each = -(-rows // UNITS)
    return -(-each // -(-each // _MOST_BLOCK))


def places_for(rows: int, others: Iterable[int] = ()) -> int:
    """N, for n rows; none of the other numbers, so that the axis of the rows can be told by its length."""
    whole = UNITS * block_of(rows)
    places = -(-rows // whole) * whole
    while places in others:
        places += whole
    return places


def require_mesh(mesh: Any) -> None:
    """Refuse what is no mesh of one axis `rows`, and numbers of devices that rows cannot be spread over."""
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}: proxbi.distributed.row_mesh() makes one of "
            "all devices."
        )
    if mesh.axis_names != (AXIS,):
        raise ValueError(f"mesh must have one axis, called {AXIS!r}; its axes are {mesh.axis_names}.")
    if UNITS % mesh.size:
        fit = [number for number in range(1, UNITS + 1) if UNITS % number == 0]
        raise ValueError(f"mesh has {mesh.size} devices, and rows can be spread over {', '.join(map(str, fit))}.")
    local = [device for device in mesh.local_devices if device.platform == "cpu"]
    if len(local) > _threads():
        warnings.warn(
            f"mesh has {len(local)} CPU devices of this process, which has {_threads()} threads: devices wait for one "
            "another, and may wait for ever. Start a process for each device instead.",
            ShardWarning,
            stacklevel=3,
        )


def _threads() -> int:
    """Of XLA in this process."""
    return int(os.environ.get("NPROC") or os.cpu_count() or 1)


def sharding(mesh: Mesh, axis: int | None) -> NamedSharding:
    """With rows along this axis; None: a copy on every device."""
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)
    return NamedSharding(mesh, spec)


def real(places: int, count: int, ndim: int = 1) -> Bool[Array, "places ..."]:
    """Which places hold rows and no padding, to be compared with an array of `ndim` axes."""
    return (jnp.arange(places, dtype=jnp.int32) < count).reshape(-1, *[1] * (ndim - 1))


def spread(mesh: Mesh, count: int, read: Callable[[int, int], PyTree]) -> PyTree:
    """Rows on the mesh. `read(start, stop)` gives a pytree of rows, and is asked for those of this process only."""
    sizes = {size for leaf in jax.tree.leaves(read(0, 1)) for size in np.shape(leaf)[1:]}
    places = places_for(count, sizes)
    where = sharding(mesh, 0)
    blocks = []
    for device, index in where.addressable_devices_indices_map((places,)).items():
        start, stop, _ = (index or (slice(None),))[0].indices(places)
        blocks.append((device, _with_copies(read, start, stop, count)))
    structure = jax.tree.structure(blocks[0][1])
    leaves = []
    for parts in zip(*(jax.tree.leaves(block) for _, block in blocks), strict=True):
        arrays = [jax.device_put(part, device) for part, (device, _) in zip(parts, blocks, strict=True)]
        shape = (places, *arrays[0].shape[1:])
        leaves.append(jax.make_array_from_single_device_arrays(shape, where, arrays))
    return jax.tree.unflatten(structure, leaves)


def _with_copies(read: Callable[[int, int], PyTree], start: int, stop: int, count: int) -> PyTree:
    """Rows start to stop - 1, the last one in the place of those that there are not."""
    first = min(start, count - 1)
    rows = jax.tree.map(np.asarray, read(first, max(min(stop, count), first + 1)))
    missing = (stop - start) - len(jax.tree.leaves(rows)[0])
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)]), rows)


def on_all(mesh: Mesh, value: Any) -> Array:
    """A copy on every device; the same value must be given in all processes."""
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding(mesh, None), lambda index: host[index])


def padded(mesh: Mesh, value: Any, axis: int, size: int) -> Array:
    """With zeros at the end of an axis, which then has `size` entries, spread along it."""
    host = np.asarray(value)
    widths = [(0, size - host.shape[axis] if k == axis else 0) for k in range(host.ndim)]
    whole = np.pad(host, widths)
    return jax.make_array_from_callback(whole.shape, sharding(mesh, axis), lambda index: whole[index])


def to_host(array: Any) -> np.ndarray:
    """As a NumPy array; where other processes hold a part of it, all of them must ask."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def row_mesh(devices: Any = None) -> Mesh:
    """The mesh of one axis, `rows`, over these devices, or over all of all processes.

    >>> row_mesh().axis_names
    ('rows',)
    """
    chosen = np.asarray(jax.devices() if devices is None else list(devices))
    return Mesh(chosen, (AXIS,))
