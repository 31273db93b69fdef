"""One run in one file: written atomically, read without pickle, refused when it is damaged or belongs to another
problem.

A checkpoint is a safetensors file. Its arrays are the leaves of the solver's state by their paths; its metadata hold
the version, the step, the counts, the history, the fingerprint of problem and solver, and a SHA-256 over all of that,
so a flipped bit is noticed.
"""

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from proxbi.problem import Counts, Problem
from proxbi.result import Snapshot
from proxbi.rows import RowError, RowSource
from proxbi.solvers import Solver

FORMAT = "proxbi-checkpoint-2"
SUFFIX = ".safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


class CheckpointWarning(UserWarning):
    """A checkpoint was not written, or a damaged one was skipped; the run continues without it."""


def save(folder: Path, snapshot: Snapshot, fingerprint: dict[str, str], keep: int) -> Path:
    """Write `snapshot` into `folder` and remove all but the newest `keep`, and those past its step, which belong to a
    future that was given up. A reader sees the old files or the new one, never half.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in _named_leaves(snapshot.state)}
    described = {
        "format": FORMAT,
        "version": version("proxbi"),
        "step": snapshot.step,
        "counts": snapshot.counts.as_dict(),
        "history": snapshot.history,
        "fingerprint": fingerprint,
    }
    path = folder / f"step-{snapshot.step:010d}{SUFFIX}"
    write(path, described, arrays)
    past = [other for other in checkpoints(folder) if other.name > path.name]
    for old in [*past, *checkpoints(folder)[len(past) + keep :]]:
        old.unlink(missing_ok=True)
    return path


def load(where: Path, like: PyTree, fingerprint: dict[str, str]) -> Snapshot | None:
    """The snapshot in the file `where`, or the newest sound one in the directory `where` (None if there is none yet).

    `like` is a state of the structure that is expected. A damaged newest file is skipped with a warning for the one
    before.
    """
    if where.is_file():
        return _read(where, like, fingerprint)
    if where.suffix == SUFFIX:
        raise FileNotFoundError(f"resume: there is no checkpoint file {str(where)!r}.")
    files = checkpoints(where)
    for number, path in enumerate(files):
        try:
            return _read(path, like, fingerprint)
        except CheckpointError as error:
            if not isinstance(error.__cause__, Damage) or number == len(files) - 1:
                raise
            warnings.warn(f"{error} The checkpoint before it is used.", CheckpointWarning, stacklevel=2)
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files in `folder`, newest first."""
    return sorted(folder.glob(f"step-*{SUFFIX}"), reverse=True)


def require_writable(folder: Path) -> None:
    """Make `folder` and see that it can be written, before any work is put at risk."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(f"folder {str(folder)!r} cannot be written: {error.strerror or error}.") from error


def prepare(folder: Path, first: int) -> None:
    """Make `folder` ready for the checkpoints of a run that starts at step `first`."""
    require_writable(folder)
    if first == 0 and (old := checkpoints(folder)):
        raise CheckpointError(
            f"folder {str(folder)!r} holds the checkpoints of another run, up to {old[0].stem}: pass it as resume= to "
            "continue that run, or choose another directory."
        )
    for leftover in folder.glob(".step-*.tmp"):  # of a run that was killed while it wrote
        leftover.unlink(missing_ok=True)


def fingerprint(problem: Problem, solver: Solver) -> dict[str, str]:
    """Digests of what must not change between a run and its resumption, by the names used in messages.

    Each is `data:python:code`. The digest of the compiled functions stands apart, beside the Python that compiled them:
    another Python compiles the same source to other code.
    """
    parts = {name: list(_describe(part)) for name, part in problem.place.described(problem).items()}
    parts |= {"problem": [type(problem).__qualname__], "solver": list(_describe(jax.tree.structure(solver)))}
    return {name: _mark(lines) for name, lines in parts.items()}


def _mark(parts: list[str | CodeType]) -> str:
    data = [part for part in parts if isinstance(part, str)]
    code = [_line(part) for part in parts if isinstance(part, CodeType)]
    one, other = (hashlib.sha256("\n".join(lines).encode()).hexdigest() for lines in (data, code))
    return f"{one}:{sys.implementation.cache_tag}:{other}"


def _agree(saved: str, expected: str) -> bool:
    """Whether two digests of `fingerprint` may belong to the same thing. Code of different Pythons is not compared."""
    if saved == expected:
        return True
    (data, python, _), (its_data, its_python, _) = saved.split(":"), expected.split(":")
    return data == its_data and python != its_python


class Damage(Exception):
    """The file is not what was written."""


def _read(path: Path, like: PyTree, expected: dict[str, str]) -> Snapshot:
    try:
        described, arrays = read(path, FORMAT)
    except Damage as damage:
        raise CheckpointError(f"checkpoint {str(path)!r} cannot be used: {damage}.") from damage
    if (written := described.get("version", "an earlier version")) != (ours := version("proxbi")):
        raise CheckpointError(
            f"checkpoint {str(path)!r} was written by proxbi {written}, and this is {ours}, which may take "
            "other steps: continue with that version, or start anew from its arrays (safetensors)."
        )
    for name, digest in expected.items():
        if name not in described["fingerprint"] or not _agree(described["fingerprint"][name], digest):
            raise CheckpointError(f"checkpoint {str(path)!r} belongs to another problem or solver: its {name} differs.")
    names = [name for name, _ in _named_leaves(like)]
    if names != list(described["dtypes"]):
        raise CheckpointError(
            f"checkpoint {str(path)!r} holds another state: {list(described['dtypes'])}, not {names}."
        )
    for name, leaf in _named_leaves(like):
        if (arrays[name].shape, str(arrays[name].dtype)) != (leaf.shape, str(leaf.dtype)):
            found = f"{arrays[name].dtype}{list(arrays[name].shape)}"
            raise CheckpointError(
                f"checkpoint {str(path)!r} has {name} as {found}, but x0 and y0 make it {leaf.dtype}{list(leaf.shape)}."
            )
    # What is only a shape is put on a device by whoever asks, who knows on which.
    abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(like))
    leaves = [arrays[name] if abstract else jnp.asarray(arrays[name]) for name in names]
    state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return Snapshot(described["step"], state, Counts(**described["counts"]), described["history"])


def read(path: Path, expected: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `write` wrote, in the format `expected`; raises `Damage` for any other file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if "proxbi" not in metadata or "sha256" not in metadata:
                raise Damage("proxbi did not write it")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise Damage(f"it is truncated, damaged or no file of proxbi at all ({error})") from error
    if _digest(metadata["proxbi"], arrays) != metadata["sha256"]:
        raise Damage("its contents do not match their checksum")
    described = json.loads(metadata["proxbi"])
    if described["format"] != expected:
        raise Damage(f"its format is {described['format']!r}, and {expected!r} is read here")
    return described, {name: a.view(jnp.dtype(described["dtypes"][name])) for name, a in arrays.items()}


def write(path: Path, described: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write arrays and what is said of them into the file `path`, whole or not at all."""
    described = described | {"dtypes": {name: str(array.dtype) for name, array in arrays.items()}}
    text = json.dumps(described, default=lambda value: np.asarray(value).tolist())  # what callbacks put into the rows
    # safetensors knows NumPy's own dtypes only: bfloat16 and the like travel as bytes and are viewed back when loading.
    arrays = {name: a if a.dtype.isbuiltin == 1 else a.view(f"u{a.dtype.itemsize}") for name, a in arrays.items()}
    _write_atomically(path, to_safetensors(arrays, {"proxbi": text, "sha256": _digest(text, arrays)}))


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.stem}-{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def _named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _describe(thing: Any, seen: tuple[Any, ...] = ()) -> Iterator[str | CodeType]:
    """Parts that are the same in another process exactly when `thing` is: bytes of arrays; of functions the code and
    what it refers to: defaults, closures, and the data and functions of its own module. (Of imported functions only
    the names.)
    """
    if any(thing is outer for outer in seen):  # a function that closes over itself
        return
    inside = (*seen, thing)
    if isinstance(thing, partial):  # jax's Partial too
        yield from _describe(thing.func, inside)
        yield from _describe((thing.args, thing.keywords), inside)
    elif isinstance(thing, jax.Array | np.ndarray | np.generic):
        if isinstance(thing, jax.Array) and jnp.issubdtype(thing.dtype, jax.dtypes.prng_key):
            thing = jax.random.key_data(thing)
        array = np.asarray(thing)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        yield f"{array.dtype}{array.shape}{hashlib.sha256(content.data).hexdigest()}"
    elif isinstance(thing, RowSource):
        yield type(thing).__qualname__
        yield from _describe(_described(thing), inside)
    elif isinstance(thing, CodeType):
        yield thing
    elif isinstance(thing, FunctionType):
        yield thing.__qualname__
        parts = [cell.cell_contents for cell in thing.__closure__ or ()]
        named = (thing.__globals__.get(name) for name in _names(thing.__code__))
        parts += [value for value in named if _is_own(value, thing.__module__)]
        for part in (thing.__code__, thing.__defaults__, thing.__kwdefaults__, *parts):
            yield from _describe(part, inside)
    elif isinstance(thing, MethodType):
        yield from _describe((thing.__func__, thing.__self__), inside)
    elif hasattr(thing, "__wrapped__") or hasattr(thing, "fun"):  # jax.jit and the like; jax's shell of a partial
        yield from _describe(getattr(thing, "__wrapped__", None) or thing.fun, inside)
    elif isinstance(thing, set | frozenset):
        yield from sorted((part for item in thing for part in _describe(item, inside)), key=_line)
    elif is_dataclass(thing) and not isinstance(thing, type):  # a module: its static fields are no leaves
        yield type(thing).__qualname__
        for field in fields(thing):
            yield from _describe((field.name, getattr(thing, field.name)), inside)
    elif thing is None or isinstance(thing, jax.tree_util.PyTreeDef) or jax.tree_util.all_leaves([thing]):
        yield re.sub(r" at 0x[0-9a-f]+", "", str(thing))  # Python writes memory addresses into representations
    else:
        # One level only: the string of a whole structure has functions in it, and says nothing about them.
        children, structure = jax.tree_util.default_registry.flatten_one_level(thing)
        yield type(thing).__qualname__
        for child in (structure, *children):
            yield from _describe(child, inside)


def _line(part: str | CodeType) -> str:
    """A part as text: of code its instructions, its names and its constants."""
    if isinstance(part, str):
        return part
    constants = [_line(inner) for constant in part.co_consts for inner in _describe(constant)]
    return "\n".join([f"{part.co_name}{part.co_code.hex()}{part.co_names}{part.co_varnames}", *constants])


def _described(source: RowSource) -> Any:
    try:
        return source.describe()
    except RowError as error:
        raise CheckpointError(f"data: {error}") from error


def _names(code: CodeType) -> list[str]:
    """The names that a function, and those inside it, look up: globals among them."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return sorted({*code.co_names, *inner})


def _is_own(value: Any, module: str) -> bool:
    """Whether the global `value` is data, or a function of the module `module`: what a user may change between runs."""
    data = (jax.Array, np.ndarray, np.generic, int, float, complex, str, bytes, tuple, list, dict)
    return isinstance(value, data) or (isinstance(value, FunctionType) and value.__module__ == module)
