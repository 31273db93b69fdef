"""Compiled programs are kept from one process to the next: to compile takes longer than small runs do."""

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

_WORTH_KEEPING = 0.1  # seconds of compiling


def keep_programs(directory: str | Path) -> None:
    """Keep the programs that JAX compiles in `directory`, which is made if need be: a later process that runs the same
    solver on a problem of the same shapes starts in a fraction of the time.

    It sets JAX's `jax_compilation_cache_dir`, for all programs of this process. Files of other versions of JAX are left
    alone, and none is ever deleted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep_programs(folder)  # before the first solve
    ...     jax.config.update("jax_compilation_cache_dir", None)  # and no longer
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"directory must be a folder, or a place for one, got {str(directory)!r}: {error}") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"directory must be one that may be written to, got {str(directory)!r}.")
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
    compilation_cache.reset_cache()  # JAX looks at the setting once, when it first compiles
