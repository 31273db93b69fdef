"""`jit` for long programs of small operations."""

from collections.abc import Callable, Iterable
from functools import cache, cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import numpy as np
from jax.tree_util import PyTreeDef

P = ParamSpec("P")
R = TypeVar("R")

# The newer of XLA's two code generators for CPUs takes twice as long for a program such as a step of a solver, which
# then runs no faster: seconds before every first result. An option that a version of XLA does not know is an error.
_QUICKLY = {"xla_cpu_use_fusion_emitters": False}

# Nor does it pay to optimise a program of thousands of operations on a few numbers each, which takes microseconds in
# any case: it is compiled in 0.6 of the time without.
_LIGHTLY = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
_FEW_NUMBERS = 10_000  # in all arrays; loops over more of them are ten times slower if not optimised

# Every program keeps hundreds of memory maps open, and Linux allows a process 65,530: a loop over a hundred problems
# used to end in a segmentation fault. Programs beyond so many are forgotten; what is called again is compiled again.
_MOST_PROGRAMS = 40


class jit(Generic[P, R]):
    """`jax.jit(function)`, compiled quickly where XLA can; inside of another `jit` or `vmap`, or
    with `jax_disable_jit`, the function itself.
    """

    def __init__(self, function: Callable[P, R], donate: tuple[int, ...] = ()):
        """`donate`: the numbers of arguments whose memory results may take; they are gone after the call."""
        self.function, self.donate = function, donate
        self._closes_over_much: dict[PyTreeDef, bool] = {}
        update_wrapper(self, function)

    @cached_property
    def thorough(self) -> Any:
        """What `jax.jit` makes of it, when it is first called: not before, as it asks XLA what it can."""
        return jax.jit(self.function, donate_argnums=self.donate, compiler_options=_known(_QUICKLY))

    @cached_property
    def light(self) -> Any:
        """The same for programs on few numbers."""
        options = _known(_QUICKLY) | _known(_LIGHTLY)
        return jax.jit(self.function, donate_argnums=self.donate, compiler_options=options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        leaves, structure = jax.tree.flatten((args, kwargs))
        off = jax.config.jax_disable_jit  # type: ignore[attr-defined]  # JAX makes its attributes as it goes
        if off or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self.function(*args, **kwargs)
        small = jax.default_backend() == "cpu" and _numbers(leaves) <= _FEW_NUMBERS
        if small and structure not in self._closes_over_much:
            # What a function closes over is in no argument, but in its trace; the function is part of the structure.
            constants = self.light.trace(*args, **kwargs).jaxpr.consts
            self._closes_over_much[structure] = _numbers(constants) > _FEW_NUMBERS
        light = small and not self._closes_over_much[structure]
        result: R = (self.light if light else self.thorough)(*args, **kwargs)
        if self.programs > _MOST_PROGRAMS:
            self.forget()
        return result

    @property
    def programs(self) -> int:
        """How many are kept."""
        return int(self.light._cache_size() + self.thorough._cache_size())

    def forget(self) -> None:
        """Keep none of them."""
        self.light.clear_cache()
        self.thorough.clear_cache()
        self._closes_over_much.clear()


def _numbers(arrays: Iterable[Any]) -> int:
    return sum(np.size(array) for array in arrays)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options, if this version of XLA knows them."""
    return options if _knows(tuple(options.items())) else {}


@cache
def _knows(options: tuple[tuple[str, Any], ...]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options))()
    except Exception:  # which one depends on the version, too
        return False
    return True
