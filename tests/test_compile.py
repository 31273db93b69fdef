"""Programs are compiled quickly where XLA knows how, and at all where it does not."""

import jax
import jax.numpy as jnp
import pytest

from proxbi import _compile


@pytest.fixture(autouse=True)
def forgotten():
    _compile._options.cache_clear()
    yield
    _compile._options.cache_clear()


def test_the_option_is_one_that_the_pinned_version_of_xla_knows():
    assert _compile._options() == _compile._QUICKLY


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setattr(_compile, "_QUICKLY", {"xla_cpu_no_such_option": False})
    assert _compile._options() == {}
    assert _compile.jit(lambda x: x + 1)(jnp.array(1.0)) == 2


def test_a_function_is_compiled_once_for_each_shape_and_keeps_its_name():
    @_compile.jit
    def twice(x):
        """Two x."""
        return 2 * x

    assert (twice.__name__, twice.__doc__) == ("twice", "Two x.")
    for size in (1, 2, 2):
        assert twice(jnp.ones(size)).shape == (size,)
    assert twice.compiled._cache_size() == 2


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
        sizes.append(twice.compiled._cache_size())
    assert max(sizes) == most
    assert twice(jnp.ones(1)).shape == (1,)
