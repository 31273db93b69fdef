"""`jit` for long programs of small operations."""

from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")

# The newer of XLA's two code generators for CPUs takes twice as long for a program such as a step of a solver, which
# then runs no faster: seconds before every first result. An option that a version of XLA does not know is an error.
_QUICKLY = {"xla_cpu_use_fusion_emitters": False}

# Every program keeps hundreds of memory maps open, and Linux allows a process 65,530: a loop over a hundred problems
# used to end in a segmentation fault. Programs beyond so many are forgotten; what is called again is compiled again.
_MOST_PROGRAMS = 40


class jit(Generic[P, R]):
    """`jax.jit(function)`, compiled quickly where XLA can; inside of another `jit` or `vmap`, the function itself."""

    def __init__(self, function: Callable[P, R]):
        self.function = function
        update_wrapper(self, function)

    @cached_property
    def compiled(self) -> Any:
        """What `jax.jit` makes of it, when it is first called: not before, as it asks XLA what it can."""
        return jax.jit(self.function, compiler_options=_options())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        result: R = (self.function if inside else self.compiled)(*args, **kwargs)
        if not inside and self.compiled._cache_size() > _MOST_PROGRAMS:
            self.compiled.clear_cache()
        return result


@cache
def _options() -> dict[str, bool]:
    """What this version of XLA knows of `_QUICKLY`."""
    try:
        jax.jit(lambda: 0, compiler_options=_QUICKLY)()
    except Exception:  # which one depends on the version, too
        return {}
    return _QUICKLY
