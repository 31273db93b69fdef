"""Vector arithmetic on pytrees: dtypes are kept, and norms neither overflow nor underflow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import _tree

TREE = {"a": jnp.array([3.0, -4.0]), "b": (jnp.array(12.0), None)}


def test_arithmetic() -> None:
    assert float(_tree.norm(TREE)) == 13
    assert float(_tree.dot(TREE, TREE)) == 169
    assert float(_tree.total(TREE)) == 11
    moved = _tree.axpy(-2, TREE, _tree.scale(3, TREE))
    assert jax.tree.structure(moved) == jax.tree.structure(TREE)
    assert float(_tree.norm(_tree.subtract(moved, TREE))) == 0
    assert float(_tree.norm(_tree.zeros_like(TREE))) == 0
    np.testing.assert_array_equal(_tree.where(jnp.asarray(False), TREE, moved)["a"], moved["a"])


@pytest.mark.parametrize("factor", [0.5, np.float64(0.5), jnp.asarray(0.5), 2, np.int64(2)], ids=repr)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_a_factor_never_changes_the_dtype(dtype: str, factor: Any) -> None:
    tree = [jnp.ones(3, dtype)]
    assert _tree.axpy(factor, tree, tree)[0].dtype == dtype
    assert _tree.scale(factor, tree)[0].dtype == dtype
    assert _tree.norm(tree).dtype == dtype


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.3, 0.45])
def test_norms_of_the_largest_and_of_the_smallest_numbers(share: float, dtype: str, compiled: bool) -> None:
    limits = jnp.finfo(dtype)
    norm = jax.jit(_tree.norm) if compiled else _tree.norm
    for size in (share * float(limits.max), float(limits.tiny) / share):
        vector = jnp.full(4, size, dtype)
        np.testing.assert_allclose(norm(vector) / vector[0], 2, rtol=1e-6)


@pytest.mark.parametrize(("bad", "expected"), [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, np.inf)])
def test_norms_of_what_is_not_finite(bad: float, expected: float) -> None:
    for entry in (0.0, 1.0, 1e308):
        tree = {"a": jnp.array([entry, bad]), "b": jnp.ones(2)}
        np.testing.assert_equal(float(_tree.norm(tree)), expected)
        assert not _tree.all_finite(tree)


def test_the_gradient_of_a_norm() -> None:
    gradient = jax.grad(_tree.norm)
    np.testing.assert_allclose(gradient(jnp.array([3.0, 4.0])), [0.6, 0.8])
    np.testing.assert_array_equal(gradient(jnp.zeros(2)), 0)


def test_all_finite_looks_at_floats_only() -> None:
    assert _tree.all_finite({"n": jnp.arange(3), "flag": jnp.asarray(True)})
    assert _tree.all_finite({})
    assert not _tree.all_finite([jnp.ones(2), jnp.array([jnp.inf], jnp.bfloat16)])


def test_ranks_are_not_promoted_in_tests_of_the_core() -> None:
    """Negative control of the setting in conftest."""
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.ones(3) + jnp.ones((2, 3))
