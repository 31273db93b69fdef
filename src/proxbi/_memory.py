"""Whether a compiled program has room to run, before it does: the compiler knows what it will ask for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

_WORTH_A_LOOK = 2**28  # bytes of arguments: what smaller programs need beside them fits anywhere
_GIB = 2**30


def memory_short(compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Why the program that `compiled` makes for the arguments has no room on a device of this process, and what would
    have; empty where it has, or where the arguments are so small that nobody need ask.
    """
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
    held = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards[:1])
    if held < _WORTH_A_LOOK:
        return ""
    # JAX keeps what is compiled here: the call that follows compiles nothing.
    stats = compiled(*arguments).memory_analysis()
    if stats is None:
        return ""
    needed = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    places = {shard.device for leaf in leaves for shard in leaf.addressable_shards}
    return shortage(needed, min(free_memory(device, len(places)) for device in places), held, most_rows(arguments))


def shortage(needed: int, free: float, held: int, rows: int) -> str:
    """The same from bytes of one device: those needed beside the arguments, those free, and those that the arguments
    hold.

    >>> print(shortage(needed=12 * 2**30, free=4 * 2**30, held=2**30, rows=9_000_000))
    one step needs 12.0 GiB beside the 1.0 GiB of its arguments on each device, and 4.0 GiB are free: ...
    """
    if needed <= free:
        return ""
    # Arguments and what is computed from them grow with the rows alike.
    share = (free + held) / (needed + held)
    return (
        f"one step needs {needed / _GIB:.1f} GiB beside the {held / _GIB:.1f} GiB of its arguments on each device, and "
        f"{free / _GIB:.1f} GiB are free: about {int(share * rows):,} of the {rows:,} rows would fit. Take so many, "
        f"spread them over {int(np.ceil(1 / share))} times as many devices (proxbi.shard), or take a solver on batches "
        "with rows on the host."
    )


def most_rows(tree: PyTree) -> int:
    """The longest first axis of an array."""
    return max((leaf.shape[0] for leaf in jax.tree.leaves(tree) if np.ndim(leaf) > 0), default=1)


def free_memory(device: Any, sharing: int) -> float:
    """Bytes that are free on a device; on a CPU, of what `sharing` devices have together. Infinite where unknown."""
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats["bytes_in_use"])
    known = Path("/proc/meminfo")
    if device.platform != "cpu" or not known.exists():
        return float("inf")
    lines = (line.split() for line in known.read_text().splitlines())
    return next((1024.0 * int(words[1]) / sharing for words in lines if words[0] == "MemAvailable:"), float("inf"))
