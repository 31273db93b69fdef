"""The benchmark of the default solver: jaxopt's calls are counted as they happen, the cache knows its problem."""

import jax
import jax.numpy as jnp
import pytest

import adaptive
import grid_search
from judge import Judge
from suite import SUITE


@pytest.fixture(scope="module")
def peer():
    pytest.importorskip("jaxopt", reason="a peer, not a dependency")
    import jaxopt_peer

    return jaxopt_peer


def test_every_kind_of_call_is_counted_when_it_is_executed(peer):
    case = SUITE["A-2"]()
    x, y = case.x0, case.y0
    counter = peer.Counter()
    lower, upper = peer.counted_lower(case.problem, counter), peer.counted_upper(case.problem, counter)

    compiled = jax.jit(lambda y, x: lower(y, x)[1])
    compiled(y, x)
    assert counter.read() == 1
    compiled(y, x)  # compiled once, executed twice
    assert counter.read() == 2
    gradient, pull_back = jax.vjp(lambda y: lower(y, x)[1], y)
    assert counter.read() == 2  # linearising is free
    product = pull_back(y + 1)[0]
    assert counter.read() == 3
    assert jnp.allclose(gradient, case.problem.grad_lower(x, y))
    assert jnp.allclose(product, case.problem.hvp(x, y)(y + 1))
    upper(x, y)
    assert counter.read() == 4
    slope = jax.grad(upper, argnums=1)(x, y)
    assert counter.read() == 5
    assert jnp.allclose(slope, case.problem.grad_upper(x, y)[1])


def test_calls_in_loops_are_counted_every_time(peer):
    case = SUITE["A-2"]()
    counter = peer.Counter()
    lower = peer.counted_lower(case.problem, counter)
    jax.jit(lambda y: jax.lax.fori_loop(0, 17, lambda _, at: at - lower(at, case.x0)[1], y))(case.y0)
    assert counter.read() == 17


@pytest.mark.slow
def test_jaxopt_gets_there_on_an_easy_problem(peer):
    case = SUITE["C-10"]()
    units = grid_search.scale(case, jnp.zeros(4))
    kind = peer.Kind("LBFGS", line_search=False, accelerated=False)
    calls, stationarity = peer.Peer(case, Judge.of(case), units, kind).run(1e-8, 1.0, 5000)
    assert 20 < calls < 1000
    assert stationarity <= grid_search.TARGET


def test_the_cache_is_about_one_problem_and_one_budget(tmp_path):
    cache = adaptive.Cache(tmp_path / "folder" / "cache.json")
    cache.put("a", {"calls": None, "budget": 100, "start": 2.0})
    cache.put("b", {"calls": 70, "budget": 100, "start": 2.0})
    again = adaptive.Cache(cache.path)
    assert again.get("a", 100, 2.0)["budget"] == 100
    assert again.get("a", 1000, 2.0) is None  # a larger budget may find what a smaller did not
    assert again.get("b", 1000, 2.0)["calls"] == 70
    assert again.get("b", 100, 2.1) is None  # another problem by that name
    assert again.get("c", 100, 2.0) is None


def test_ratios_are_of_calls_and_unsolved_ones_are_marked():
    own = {"calls": 50, "solved": True}
    found = {"calls": 200, "budget": 1000, "ratio": 0.25, "setting": "this"}
    row = {"problem": "A", "kappa": 2.0, "h": "l1", "adaptive": own, "paper": found}
    lost = row | {"problem": "B", "adaptive": own | {"solved": False}}
    lost |= {"paper": found | {"calls": None, "ratio": 0.05}}
    assert "200" in adaptive.line(row)
    assert "!" not in adaptive.line(row)
    assert "> 1000" in adaptive.line(lost)
    assert "!" in adaptive.line(lost)
    assert adaptive.summary([row, lost], "paper") == "adaptive / paper: median 0.150, largest 0.250 (A)"
