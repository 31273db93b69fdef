"""Commands keep their compiled programs in the user's cache."""

import contextlib


def keep_programs() -> None:
    """Unless JAX's own settings say where to keep them, or there is no place."""
    import jax

    import proxbi._programs
    from proxbi.datasets.handwritten import user_cache

    if jax.config.values["jax_compilation_cache_dir"] is None:
        with contextlib.suppress(OSError, ValueError):
            proxbi._programs.keep_programs(user_cache() / "proxbi" / "programs")
