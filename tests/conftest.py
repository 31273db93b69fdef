"""Settings of all tests: double precision, no silent mixing of dtypes and, for the core, of ranks; and reproducible
hypothesis examples.
"""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

import proxbi

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

collect_ignore = ["child_rank.py"]  # it joins the other processes of a run as soon as it is imported

settings.register_profile(
    "proxbi",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("proxbi")


# Tests keep all cores busy by themselves: to cut each program into parts for several threads only costs time.
_SERIAL = "--xla_cpu_parallel_codegen_split_count=1"
_QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def pytest_configure(config: pytest.Config) -> None:
    """Quick tests are small problems, each a program of its own that runs for milliseconds. Without LLVM's
    optimisations and by the older code generator, which the library chooses for its own programs too, they compile in
    less than half of the time. Slow tests run what users run.
    """
    quick = "not slow" in config.option.markexpr
    flags = [os.environ.get("XLA_FLAGS", ""), _SERIAL, _QUICKLY if quick else ""]
    os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))


# The same small programs are compiled in each of the workers, and again in the next run: to compile is two thirds of
# the time of the quick tests. `make clean` removes them.
_PROGRAMS = Path(__file__).parent.parent / ".pytest_cache" / "programs"


@pytest.fixture(autouse=True)
def _kept_programs() -> None:
    """Keep every program, however small; a test may have set something else."""
    if jax.config.values["jax_compilation_cache_dir"] != str(_PROGRAMS):
        proxbi.keep_programs(_PROGRAMS)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


_CORE = {
    *(
        "adaptive",
        "certificate",
        "compare",
        "contract",
        "decide",
        "glm",
        "hypergradient",
        "implicit",
        "linear",
        "lower",
    ),
    *("lower_regularizer", "many", "minimize", "own_loop", "penalty", "problem", "prox_mutations", "regularizers"),
    *("rows", "saved", "stochastic", "theory", "tree"),
}


@pytest.fixture(autouse=True, scope="module")
def _no_rank_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """A vector that meets a matrix by accident is an error in the core, as are mixed dtypes everywhere. For all of a
    module, its fixtures included: JAX compiles again where this setting is another.
    """
    if request.path.stem.removeprefix("test_") not in _CORE:
        yield
        return
    with jax.numpy_rank_promotion("raise"):
        yield


_MOST_MAPS = 30_000  # of memory, of the 65,530 that Linux allows a process: with more of them LLVM crashes
_EVERY = 16  # tests: to count so many maps takes 20 ms, and no test opens more than some hundreds
_tests = count()


@pytest.fixture(autouse=True)
def _few_programs() -> None:
    """Forget compiled programs when there are many: each keeps memory maps open."""
    maps = Path("/proc/self/maps")
    if next(_tests) % _EVERY == 0 and maps.exists() and maps.read_text().count("\n") > _MOST_MAPS:
        jax.clear_caches()


_LONG_EXAMPLES = {
    *("proxbi.cleaning.method.clean.clean", "proxbi.cleaning.estimator.label_cleaner.LabelCleaner"),
    *("proxbi.distributed._shard.shard", "proxbi._many.minimize_many", "proxbi._diagnose.check"),
    "proxbi.solvers.stochastic.saba.ProxSABA",
}
"""Four to ten seconds each, of what quick tests of the same names show as well."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long examples are slow tests; and the longest tests first, so that no worker waits for another one at the end."""
    for item in items:
        if item.name in _LONG_EXAMPLES:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.name != "test_paper.py")
