"""The benchmark of the default solver: jaxopt's calls are counted as they happen, the cache knows its problem."""

import jax
import jax.numpy as jnp
import pytest

import adaptive
import grid_search
import peers
from judge import TARGET, Judge
from proxbi import Problem, minimize
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
@pytest.mark.hours
def test_jaxopt_gets_there_on_an_easy_problem(peer):
    case = SUITE["C-10"]()
    units = grid_search.scale(case, jnp.zeros(4))
    kind = peer.Kind("LBFGS", line_search=False, accelerated=False)
    calls, stationarity = peer.Peer(case, Judge.of(case), units, kind).run(1e-8, 1.0, 5000)
    assert 20 < calls < 1000
    assert stationarity <= TARGET


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
    unfit = row | {"problem": "C", "paper": None}
    assert " - " in adaptive.line(unfit)
    assert adaptive.summary([row, lost, unfit], "paper") == "adaptive / paper: median 0.150, largest 0.250 (A)"


def counting(problem):
    """`problem` with every oracle call counted as it is executed."""
    counter = {"calls": 0}

    def tick():
        counter["calls"] += 1

    class Counted(Problem):
        def grad_lower(self, x, y):
            jax.debug.callback(tick)
            return super().grad_lower(x, y)

        def hvp(self, x, y):
            product = super().hvp(x, y)

            def counted(v):
                jax.debug.callback(tick)
                return product(v)

            return counted

    return Counted(problem.upper, problem.lower, problem.regularizer, problem.data), counter


def test_the_general_methods_are_charged_no_more_than_their_solves_take():
    case = SUITE["pricing"]()
    problem, counter = counting(case.problem)
    goal = jnp.asarray(1e-8)
    y, counts = peers.solve_lower(problem, case.x0, case.y0, goal)
    jax.effects_barrier()
    steps = counter["calls"] - int(counts.total)  # CG measures its residual once more each time
    assert 0 < steps <= 20
    assert (y > 0).all()
    assert jnp.linalg.norm(case.problem.grad_lower(case.x0, y)) <= goal
    v, counts = peers.solve_adjoint(case.problem, case.x0, y, jnp.zeros_like(y))
    assert jnp.allclose(case.problem.hvp(case.x0, y)(v), case.problem.grad_upper(case.x0, y)[1], atol=1e-6)
    assert (int(counts.grad_upper), int(counts.cross)) == (1, 1)


@pytest.mark.slow
@pytest.mark.hours
@pytest.mark.parametrize("peer", ["lbfgsb", "fista", "adam"])
def test_the_general_methods_get_there(peer):
    case = SUITE["scalar"]()
    row = peers.PEERS[peer](case, 20_000)
    assert 10 < row["calls"] < 20_000
    assert row["stationarity"] <= TARGET


def test_what_a_general_method_cannot_do_is_left_out():
    assert peers.lbfgsb(SUITE["C-10"](), 100) is None


def test_another_minimum_is_marked():
    own = {"objective": 1.0, "gain": 10.0}
    marks = {found: adaptive.elsewhere(own, {"calls": 5, "objective": found}) for found in (0.5, 0.95, 1.05, 1.2)}
    assert marks == {0.5: "-", 0.95: " ", 1.05: " ", 1.2: "+"}
    assert adaptive.elsewhere(own, {"calls": None, "objective": 1.2}) == " "


@pytest.mark.slow
def test_the_calls_of_the_certificate_are_counted():
    case = SUITE["C-10"]()
    row, x = adaptive.one_run(case, Judge.of(case), {})
    assert row["solved"]
    result = minimize(problem=case.problem, x0=case.x0, y0=case.y0)
    assert jnp.array_equal(result.x, x)
    assert row["calls"] >= result.counts.total
