"""Programs are compiled quickly where XLA knows how, and at all where it does not."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.tree_util import Partial

import proxbi
from proxbi import _check, _compile, _programs


@pytest.fixture(autouse=True)
def forgotten():
    _compile._knows.cache_clear()
    yield
    _compile._knows.cache_clear()


@pytest.mark.parametrize("options", [_compile._QUICKLY, _compile._LIGHTLY])
def test_the_options_are_those_that_the_pinned_version_of_xla_knows(options):
    assert _compile._known(options) == options


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(_compile, "_QUICKLY", {"xla_cpu_no_such_option": False})
    assert _compile._known(_compile._QUICKLY) == {}
    assert _compile.jit(lambda x: x + 1)(jnp.array(1.0)) == 2


def test_a_function_is_compiled_once_for_each_shape_and_keeps_its_name():
    @_compile.jit
    def twice(x):
        """Two x."""
        return 2 * x

    assert (twice.__name__, twice.__doc__) == ("twice", "Two x.")
    for size in (1, 2, 2):
        assert twice(jnp.ones(size)).shape == (size,)
    assert twice.programs == 2


def test_only_programs_on_few_numbers_are_not_optimised():
    few, many = jnp.ones(3), jnp.ones(_compile._FEW_NUMBERS + 1)
    total = _compile.jit(lambda function, x: function(x))
    for function, x in ((Partial(jnp.sum), few), (Partial(jnp.sum), many), (Partial(lambda x: x @ many[:3]), few)):
        total(function, x)
    assert (total.light._cache_size(), total.thorough._cache_size()) == (1, 2)


def test_inside_of_another_jit_or_vmap_it_is_the_function_itself():
    twice = _compile.jit(lambda x: 2 * x)
    assert jax.jit(twice)(jnp.array(1.0)) == 2
    assert jax.vmap(twice)(jnp.ones(3)).tolist() == [2, 2, 2]
    assert jax.grad(twice)(1.0) == 2


def test_a_loop_over_many_problems_does_not_keep_all_of_their_programs():
    most = _compile._MOST_PROGRAMS
    twice = _compile.jit(lambda x: 2 * x)
    sizes = []
    for size in range(1, most + 5):
        assert twice(jnp.ones(size)).shape == (size,)
        sizes.append(twice.programs)
    assert max(sizes) == most
    assert twice(jnp.ones(1)).shape == (1,)


@pytest.fixture
def settings_of_jax():
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("settings_of_jax")
def test_programs_are_kept_where_they_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where JAX has compiled before."""
    jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()
    monkeypatch.setattr(_programs, "_WORTH_KEEPING", 0.0)
    proxbi.keep_programs(tmp_path / "new" / "programs")
    jax.jit(lambda x: jnp.linalg.inv(x) @ x)(jnp.eye(3)).block_until_ready()
    assert list((tmp_path / "new" / "programs").iterdir())


def test_a_file_is_no_place_for_programs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="directory must be a folder, or a place for one"):
        proxbi.keep_programs(tmp_path / "file")
    assert jax.config.values["jax_compilation_cache_dir"] != str(tmp_path / "file")


def test_what_is_finite_is_seen_on_the_device() -> None:
    assert bool(_check._all_finite(jnp.ones(3)))
    assert not bool(_check._all_finite(jnp.array([1.0, jnp.nan])))
