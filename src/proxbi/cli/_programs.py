"""Compiled programs are kept from one command to the next: to compile takes longer than small runs do."""

import contextlib
import os


def keep_programs() -> None:
    """Let JAX keep what it compiles in the user's cache, unless its own settings say where, or there is no place."""
    import jax

    from proxbi.datasets.handwritten import user_cache

    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    with contextlib.suppress(OSError):
        folder = user_cache() / "proxbi" / "programs"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
