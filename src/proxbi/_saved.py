"""A `Result` in one file, of the same kind as a checkpoint: arrays and JSON, no pickle.

A checkpoint continues a run and belongs to one problem, one solver and one version. A saved result is what one keeps,
sends and plots later: it is read without the problem.
"""

from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxbi.checkpoint import Damage, read, write
from proxbi.problem import Counts
from proxbi.result import Result, Seconds, Snapshot, Status

FORMAT = "proxbi-result-1"
_NUMBERS = (
    *("objective", "stationarity", "lower_residual", "linear_residual", "history", "hypergradient_error"),
    *("active_set_margin", "guaranteed", "certificate_rows", "standard_error"),
)
"""The fields of `Result` that JSON holds as they are."""


class SavedState(NamedTuple):
    """The solver's state in a result that was loaded: x, y, and all its arrays without their structure, which the
    solver of the run that resumes from it gives back.
    """

    x: PyTree
    y: PyTree
    leaves: list[np.ndarray]

    def shaped_as(self, state: PyTree) -> PyTree:
        """These arrays in the structure of `state`, or None if they are not of its shapes and dtypes."""
        expected = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
        if expected != [(leaf.shape, leaf.dtype) for leaf in self.leaves]:
            return None
        return jax.tree.unflatten(jax.tree.structure(state), map(jnp.asarray, self.leaves))


def save_result(result: Result, path: str | PathLike[str]) -> None:
    """Save a `Result` into one file, to be read by `load_result` in another process: x, y, status, history, counts and
    the state to resume from. The file is in the safetensors format and is written whole or not at all.

    **Arguments:**

    - `result`: what `minimize` returned.
    - `path`: the file. An existing one is replaced.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> from proxbi import load_result, minimize
    >>> from proxbi.analytic import scalar_problem
    >>> path = tempfile.mkdtemp() + "/run.safetensors"
    >>> save_result(minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0)), path)
    >>> load_result(path).status.name
    'CONVERGED'
    """
    if not isinstance(result, Result):
        raise TypeError(f"result must be a Result of minimize, got {type(result).__name__}.")
    described = {
        "format": FORMAT,
        "x": _structure(result.x),
        "y": _structure(result.y),
        "step": result.steps,
        "status": result.status.name,
        "counts": result.counts.as_dict(),
        "counts of the state": result.state.counts.as_dict(),
        "seconds": list(result.seconds),
        "notes": list(result.notes),
        "numbers": {name: getattr(result, name) for name in _NUMBERS},
    }
    trees = {"x": result.x, "y": result.y, "state": result.state.state}
    leaves = {part: jax.tree.leaves(tree) for part, tree in trees.items()}
    if isinstance(result.state.state, SavedState):
        leaves["state"] = result.state.state.leaves
    arrays = {f"{part}:{k}": np.asarray(leaf) for part in leaves for k, leaf in enumerate(leaves[part])}
    write(Path(fspath(path)), described, arrays)


def load_result(path: str | PathLike[str], like: tuple[PyTree, PyTree] | None = None) -> Result:
    """Load the `Result` that `save_result` wrote.

    **Arguments:**

    - `path`: the file.
    - `like`: a pair of pytrees with the structures of x and y. Only needed if these are not made of dictionaries,
      lists, tuples and arrays.

    **Returns:** the `Result`. It can be passed to `minimize` as `resume=`, with the same problem and solver and with x0
    and y0: that run continues bit for bit.

    Raises `ValueError` if the file is damaged or contains something else.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> from proxbi import minimize, save_result
    >>> from proxbi.analytic import scalar_problem
    >>> path, problem, zero = tempfile.mkdtemp() + "/run.safetensors", scalar_problem(), jnp.array(0.0)
    >>> save_result(minimize(problem, zero, zero, steps=2, tol=1e-12), path)
    >>> minimize(problem, zero, zero, tol=1e-12, resume=load_result(path)).status.name
    'CONVERGED'
    """
    try:
        described, arrays = read(Path(fspath(path)), FORMAT)
    except Damage as damage:
        raise ValueError(f"{fspath(path)!r} cannot be loaded as a result: {damage}.") from damage
    x, y, leaves = (_of_part(part, arrays) for part in ("x", "y", "state"))
    x, y = (
        _built(name, described[name], list(map(jnp.asarray, found)), like and (like[place],))
        for place, (name, found) in enumerate({"x": x, "y": y}.items())
    )
    numbers = described["numbers"]
    return Result(
        x=x,
        y=y,
        status=Status[described["status"]],
        counts=Counts(**described["counts"]),
        seconds=Seconds(*described["seconds"]),
        notes=tuple(described["notes"]),
        state=Snapshot(
            described["step"], SavedState(x, y, leaves), Counts(**described["counts of the state"]), numbers["history"]
        ),
        **numbers,
    )


def _of_part(part: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The leaves of x, of y or of the state, in their order."""
    count = sum(name.startswith(f"{part}:") for name in arrays)
    return [arrays[f"{part}:{k}"] for k in range(count)]


def _structure(tree: PyTree) -> Any:
    """The structure of a tree of dictionaries, lists, tuples and arrays as JSON; "other" for a container that JSON
    cannot name.
    """
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _structure(value) for key, value in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_structure(value) for value in tree]}
    return "array" if jax.tree_util.all_leaves([tree]) else "other"


def _skeleton(structure: Any) -> PyTree:
    """A tree of zeros with that structure; raises `LookupError` where there is an "other"."""
    if structure == "array":
        return 0
    if structure == "other":
        raise LookupError
    ((kind, inside),) = structure.items()
    if kind == "dict":
        return {key: _skeleton(value) for key, value in inside.items()}
    return {"list": list, "tuple": tuple}[kind](map(_skeleton, inside))


def _built(name: str, structure: Any, leaves: list[Any], like: tuple[PyTree] | None) -> PyTree:
    try:
        shape = jax.tree.structure(_skeleton(structure) if like is None else like[0])
    except LookupError:
        raise ValueError(
            f"{name} is not made of dictionaries, lists, tuples and arrays: pass like=(x, y), two pytrees of the same "
            "structures."
        ) from None
    if shape.num_leaves != len(leaves):
        raise ValueError(f"like: its {name} has {shape.num_leaves} arrays, and the file has {len(leaves)}.")
    return jax.tree.unflatten(shape, leaves)
