"""A result in a file: everything comes back, a run continues from it bit for bit, and what is wrong is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import L1, Problem, Result, load_result, minimize, save_result


class Pair(NamedTuple):
    """A container that JSON cannot name."""

    left: Any
    right: Any


def upper(x: Any, y: Any) -> Any:
    return jnp.sum((y["a"] - 2) ** 2) + jnp.sum((y["b"][0] - 1) ** 2)


def lower(x: Any, y: Any) -> Any:
    return jnp.sum((y["a"] - x[0]) ** 2) + jnp.sum(jnp.cosh(y["b"][0] - x[1]))


PROBLEM = Problem(upper, lower, L1(0.1))
STARTS = [jnp.zeros(2), jnp.zeros(())], {"a": jnp.zeros(2), "b": (jnp.zeros(()),)}


@pytest.fixture(scope="module")
def result() -> Result:
    return minimize(PROBLEM, *STARTS, steps=3, every=1, tol=1e-14)


def same(left: Any, right: Any) -> bool:
    equal = jax.tree.map(lambda a, b: a.dtype == b.dtype and np.array_equal(a, b), left, right)
    return all(jax.tree.leaves(equal))


def test_everything_comes_back(result: Result, tmp_path: Path) -> None:
    save_result(result, tmp_path / "a")
    loaded = load_result(str(tmp_path / "a"))
    assert same(loaded.x, result.x)
    assert same(loaded.y, result.y)
    assert same(jax.tree.leaves(loaded.state.state.leaves), jax.tree.leaves(result.state.state))
    assert str(loaded) == str(result)
    assert loaded.history == result.history
    for name in vars(result).keys() - {"x", "y", "state"}:
        assert getattr(loaded, name) == getattr(result, name), name
    save_result(loaded, tmp_path / "b")
    assert same(load_result(tmp_path / "b").state.state.leaves, loaded.state.state.leaves)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_run_continues_from_it_bit_for_bit(result: Result, tmp_path: Path) -> None:
    save_result(result, tmp_path / "a")
    ends = [
        minimize(PROBLEM, *STARTS, steps=6, every=1, tol=1e-14, resume=r) for r in (result, load_result(tmp_path / "a"))
    ]
    assert same(ends[0].x, ends[1].x)
    assert ends[0].steps == ends[1].steps > 3
    assert ends[0].counts == ends[1].counts
    with pytest.raises(ValueError, match="its state does not match this solver, x0 and y0"):
        minimize(
            PROBLEM,
            [jnp.zeros(3), jnp.zeros(())],
            {"a": jnp.zeros(3), "b": (jnp.zeros(()),)},
            resume=load_result(tmp_path / "a"),
        )


def test_other_containers_need_an_example(result: Result, tmp_path: Path) -> None:
    save_result(replace(result, x=Pair(*result.x)), tmp_path / "a")
    with pytest.raises(ValueError, match=r"x is not made of .*: pass like=\(x, y\)"):
        load_result(tmp_path / "a")
    assert type(load_result(tmp_path / "a", like=(Pair(0, 0), STARTS[1])).x) is Pair
    with pytest.raises(ValueError, match="its x has 1 arrays, and the file has 2"):
        load_result(tmp_path / "a", like=(0, STARTS[1]))


def test_what_is_wrong_is_named(result: Result, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="result must be a Result of minimize, got dict"):
        save_result({}, tmp_path / "a")  # type: ignore[arg-type]
    save_result(result, tmp_path / "a")
    content = bytearray((tmp_path / "a").read_bytes())
    content[-1] ^= 1
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(ValueError, match="b' cannot be loaded as a result: its contents do not match their checksum"):
        load_result(tmp_path / "b")
    with pytest.raises(ValueError, match="nothing' cannot be loaded as a result"):
        load_result(tmp_path / "nothing")
