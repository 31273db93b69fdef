"""Solvers on batches: where they go, what they count, what they remember, and what they say at the end."""

from collections import Counter
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxbi import (
    AID,
    L1,
    Checkpoint,
    GradientDescent,
    Minibatch,
    Neumann,
    Problem,
    ProxBiO,
    ProxF2SA,
    ProxSABA,
    ProxSOBA,
    ProxSRBA,
    Rows,
    Status,
    Zero,
    minimize,
)
from proxbi.solvers import OnBatches
from proxbi.solvers.stochastic._base import Draws
from proxbi.solvers.stochastic._scale import Path as Way
from proxbi.solvers.stochastic._scale import Scale

# f = mean |y - t_j|^2 / 2 and g = mean over rows of (y - x + s_i)' diag(a_i) (y - x + s_i) / 2: with A = mean a_i and
# c = mean(a_i s_i) / A, y* = x - c and Phi = |x - c - mean t|^2 / 2 + const.
ROWS = 96
DRAW = np.random.default_rng(5)
LOWER = {"a": DRAW.uniform(0.5, 1.5, (ROWS, 3)), "s": DRAW.normal(size=(ROWS, 3))}
UPPER = {"t": DRAW.normal(size=(64, 3)) + np.array([2.0, -2.0, 0.05])}
MIDDLE = np.mean(LOWER["a"] * LOWER["s"], axis=0) / np.mean(LOWER["a"], axis=0)
MINIMUM = MIDDLE + np.mean(UPPER["t"], axis=0)
START = jnp.zeros(3)
BATCH = 16


def upper(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum((y[None] - batch["t"]) ** 2, axis=1)) / 2


def lower(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum(batch["a"] * ((y - x)[None] + batch["s"]) ** 2, axis=1)) / 2


PROBLEM = Problem(upper, lower, L1(0.3), Rows(upper=UPPER, lower=LOWER))
BEST = np.sign(MINIMUM) * np.maximum(np.abs(MINIMUM) - 0.3, 0)

SOLVERS: dict[str, OnBatches] = {
    "SOBA": ProxSOBA(0.05, 0.5, batch=BATCH, average=0.5),
    "SABA": ProxSABA(0.05, 0.3, batch=BATCH),
    "SRBA": ProxSRBA(0.05, 0.5, batch=BATCH, refresh=0.2),
    "F2SA": ProxF2SA(0.05, 0.5, batch=BATCH, penalty=5.0, growth=0.1),
    "minibatch": Minibatch(ProxBiO(AID(GradientDescent(0.5, 2), Neumann(0.5, 3)), 0.05), batch=BATCH),
}


def solve(solver: Any, steps: int, problem: Problem = PROBLEM, **options: Any) -> Any:
    return minimize(problem, START, START, solver, steps=steps, **options)


def same_bits(a: Any, b: Any) -> bool:
    return all(
        np.asarray(p).tobytes() == np.asarray(q).tobytes()
        for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# --- where they go ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SABA", "SRBA"])
def test_noise_that_vanishes_leads_to_the_minimiser(name: str) -> None:
    result = solve(SOLVERS[name], 800)
    np.testing.assert_allclose(result.x, BEST, atol=1e-8)
    assert result.x[2] == 0 or abs(MINIMUM[2]) > 0.3  # the prox makes zeros
    assert result.stationarity < 1e-6
    assert result.certificate_rows == 0


def test_noise_that_stays_keeps_soba_away() -> None:
    """The control of the test above: it must be able to fail."""
    x = solve(SOLVERS["SOBA"], 800).x
    assert 1e-4 < np.linalg.norm(x - BEST) < 0.5


def test_saba_draws_blocks_independently_once_its_table_is_full() -> None:
    """In turn, each as often as the others, it took twice the steps."""
    solver, seed = ProxSABA(batch=4), jnp.array([1, 2], jnp.uint32)
    blocks = ROWS // 4
    drawn = [int(solver.block(PROBLEM.data, "lower", Draws(jnp.int32(k), seed))) for k in range(3 * blocks)]
    assert sorted(drawn[:blocks]) == list(range(blocks))
    assert len(set(drawn[blocks : 2 * blocks])) < blocks


@pytest.mark.slow
def test_steps_of_y_shorten_where_the_lower_level_becomes_stiffer() -> None:
    """g_yy = e^x, and x is pulled from 0 to 3: a step of y that was stable at x0 is ten times too long there."""

    def stiff(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(jnp.exp(x[0]) * (y[None] - batch["s"]) ** 2) / 2

    def pulled(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean((y[None] - batch["t"]) ** 2) / 2 + jnp.sum((x - 3) ** 2) / 2

    problem = Problem(pulled, stiff, Zero(), Rows(upper={"t": UPPER["t"]}, lower={"s": LOWER["s"]}))
    result = minimize(problem, jnp.zeros(1), START, ProxSABA(0.05, 0.9, batch=BATCH), steps=600)
    np.testing.assert_allclose(result.x, 3, atol=1e-6)
    np.testing.assert_allclose(result.y, np.mean(LOWER["s"], axis=0), atol=1e-6)


ADJUSTED = jax.jit(lambda scale, x, d, used, number: scale.adjusted(x, d, used, number))


@settings(max_examples=30)
@given(angle=st.floats(0, np.pi), size=st.floats(1e-6, 1e6), ceiling=st.floats(0.5, 4))
def test_the_step_of_x_grows_by_the_cosine_of_two_ways(angle: float, size: float, ceiling: float) -> None:
    """Longer where x went on, shorter by the square where it came back or swings; as it was where it turned; never past
    1 / D.
    """
    last = jnp.array([1.0, 0.0])
    way = size * jnp.array([np.cos(angle), np.sin(angle)])
    one, least, steps = jnp.array(1.0), jnp.int32(7), 7
    zero = jnp.array(0.0)
    path = Way(jnp.int32(3), jnp.array(0.5 * (steps - 1)), jnp.zeros(2), last, zero, zero)  # half as long as b
    before = Scale(one, one, one, jnp.array(ceiling), one, one, least, least, path, None)
    after = ADJUSTED(before, way, last, jnp.array(0.5), jnp.int32(10))
    cosine = np.cos(angle)
    factor = 2 ** (cosine if cosine > 0 else 2 * cosine)
    np.testing.assert_allclose(after.outer, min(0.5 * factor, ceiling), rtol=1e-9)
    np.testing.assert_array_equal(after.path.last, way)
    swings = before._replace(path=path._replace(slopes=jnp.array(steps * 2.1), before=one))
    np.testing.assert_allclose(ADJUSTED(swings, way, last, jnp.array(0.5), jnp.int32(10)).outer, 0.125)
    assert ADJUSTED(before, way, last, one, jnp.int32(9)).outer == 1  # the window has not ended
    slow = before.following(
        jnp.array(0.01)
    )  # y and v take 100 steps: the window waits, but not longer than the run was
    assert ADJUSTED(slow, way, last, one, jnp.int32(10)).outer != 1
    later = slow._replace(path=path._replace(begun=jnp.int32(1000)))
    assert ADJUSTED(later, way, last, one, jnp.int32(1399)).outer == 1
    assert ADJUSTED(later, way, last, one, jnp.int32(1400)).outer != 1


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "largest"), [(ProxSRBA(relearn=False), 1e-10), (ProxSABA(relearn=False), 1e-4)])
def test_runs_that_have_converged_stay_where_they_are(solver: OnBatches, largest: float) -> None:
    """At rounding, cosines are chance: b grew until x was thrown back to 1e-2, in two of sixteen runs."""

    def worst(seed: Any) -> Any:
        t = jax.random.normal(jax.random.key(seed), (640, 2))
        level = {"a": jnp.ones_like(t), "s": t}
        problem = Problem(upper, lower, Zero(), Rows(upper={"t": t}, lower=level))
        start = solver.init(problem, jnp.ones(2), jnp.ones(2))

        def step(state: Any, number: Any) -> tuple[Any, Any]:
            state, _ = solver.step(problem, state, jax.random.fold_in(jax.random.key(100 + seed), number))
            return state, jnp.max(jnp.abs(state.x - 2 * jnp.mean(t, axis=0)))

        return jnp.max(jax.lax.scan(step, start, jnp.arange(2000))[1][1000:])

    assert np.max(jax.jit(jax.vmap(worst))(jnp.arange(16))) < largest


def test_a_step_of_x_that_waits_begins_with_its_reach() -> None:
    """Three tenths of the length of x, along the sum of the directions of the first window."""
    zero, window, x = jnp.array(0.0), jnp.int32(2), jnp.array([30.0, 40.0])
    path = Way(jnp.int32(0), zero, x, jnp.zeros(2), zero, zero)
    waiting = Scale(zero, zero, zero, jnp.array(jnp.inf), zero, jnp.array(1.0), window, window, path, None)
    for number, direction in enumerate(([1.0, 0.0], [0.0, 2.0]), start=1):
        waiting = ADJUSTED(waiting, x, jnp.array(direction), zero, jnp.int32(number))
    np.testing.assert_allclose(waiting.outer, 15 / np.sqrt(5))
    np.testing.assert_allclose(waiting.path.last, -3 * np.sqrt(5) * np.array([1.0, 2.0]))


@pytest.mark.slow
def test_the_step_of_x_is_adjusted_as_the_run_shows() -> None:
    """Phi = cosh-like: its curvature at x0 is e^4 times that at the minimum, and so is its slope."""

    def bent(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(jnp.cosh(y[None] - batch["t"]))

    problem = Problem(bent, lower, Zero(), Rows(upper={"t": 0.1 * UPPER["t"]}, lower=LOWER))
    x0, solver = jnp.full(3, 4.0), ProxSABA(batch=BATCH)
    short = minimize(problem, x0, x0, solver, steps=64, every=64, throw=False)  # 32 of them x waits
    first = short.state.state.scale.outer
    result = minimize(problem, x0, x0, solver, steps=2000, every=500)
    assert result.state.state.scale.outer > 3 * first
    assert result.stationarity < 1e-6


@pytest.mark.slow
def test_steps_that_fade_bring_soba_closer() -> None:
    near = np.linalg.norm(solve(ProxSOBA(0.05, 0.5, batch=BATCH, half_life=100.0), 3000, every=1000).x - BEST)
    assert near < 0.03


@pytest.mark.slow
def test_the_bias_of_f2sa_falls_with_the_penalty() -> None:
    distances = []
    for penalty in (1.0, 30.0):
        solver = ProxF2SA(0.02, 0.5, batch=64, penalty=penalty, growth=0.0)
        distances.append(np.linalg.norm(solve(solver, 1500, every=1500).x - BEST))
    assert distances[1] < 0.3 * distances[0]


@pytest.mark.slow
@pytest.mark.parametrize("make", [ProxSRBA, ProxSABA])
def test_steps_that_are_learned_converge(make: Any) -> None:
    result = solve(make(batch=BATCH), 600, every=600)
    np.testing.assert_allclose(result.x, BEST, atol=1e-5)


@pytest.mark.slow
def test_learned_steps_follow_the_units() -> None:
    """g a hundred times larger: the steps of y and v are a hundred times shorter, that of x is the same."""

    def scaled(x: Any, y: Any, batch: Any) -> Any:
        return 100 * lower(x, y, batch)

    def scale(problem: Problem) -> Any:
        return jax.jit(lambda: ProxSOBA(batch=BATCH).init(problem, START, START).scale)()

    plain, large = scale(PROBLEM), scale(eqx.tree_at(lambda p: p.lower, PROBLEM, jax.tree_util.Partial(scaled)))
    np.testing.assert_allclose(large.lower * 100, plain.lower, rtol=1e-6)
    np.testing.assert_allclose(large.outer, plain.outer, rtol=0.05)


SGD = optax.sgd(0.05, momentum=0.9)


@pytest.mark.slow
def test_an_optimizer_of_optax_moves_y() -> None:
    solver = ProxSOBA(0.02, 0.5, batch=64, optimizer=SGD, half_life=500.0)
    np.testing.assert_allclose(solve(solver, 1500, every=1500).x, BEST, atol=0.1)


def test_rows_and_products_may_have_half_precision() -> None:
    """The recipe of docs/minibatches.md: rows in bfloat16, y cast where it meets them, iterates in float32."""

    def scores(y: Any, batch: Any) -> Any:
        return (batch["z"] @ y.astype(batch["z"].dtype)).astype(y.dtype)

    def fit(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean((scores(y, batch) - batch["t"]) ** 2) / 2

    def follow(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(scores(y - x, batch) ** 2) / 2  # y* = x

    z, truth = DRAW.normal(size=(ROWS, 3)), np.array([1.0, -2.0, 0.5])
    half = {"z": jnp.asarray(z, jnp.bfloat16), "t": jnp.asarray(z @ truth, jnp.float32)}
    problem, start = Problem(fit, follow, Zero(), Rows(upper=half, lower=half)), jnp.zeros(3, jnp.float32)
    assert "bf16[96,3]" in str(jax.make_jaxpr(problem.hvp(start, start))(start))  # products are in half precision
    solver = ProxSOBA(0.1, 0.3, batch=32, average=0.5, half_life=100.0, certificate_rows=ROWS)
    result = minimize(problem, start, start, solver, steps=400)
    assert {leaf.dtype for leaf in (result.x, result.y, result.state.state.v)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(result.x, truth, atol=0.05)


@pytest.mark.slow
def test_a_network_s_steps_are_found() -> None:
    """An optimizer moves y, no step size is given: x waits for a window, begins, and the weights find wrong rows."""
    wrong = np.arange(ROWS) < ROWS // 3
    z = DRAW.normal(size=(ROWS, 3))
    t = np.sign(z[:, 0]) * np.where(wrong, -1, 1)
    rows = {"z": jnp.asarray(z), "t": jnp.asarray(t)}
    trusted = DRAW.normal(size=(64, 3))

    def loss(y: Any, batch: Any) -> Any:
        return jax.nn.softplus(-batch["t"] * (jnp.tanh(batch["z"] @ y["in"]) @ y["out"]))

    def fit(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.sigmoid(x[batch.index]) * loss(y, batch))

    def judge(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(loss(y, batch))

    data = Rows(upper={"z": jnp.asarray(trusted), "t": jnp.asarray(np.sign(trusted[:, 0]))}, lower=rows)
    y0 = {"in": jnp.asarray(DRAW.normal(size=(3, 8))), "out": jnp.asarray(DRAW.normal(size=8) / 3)}
    solver = ProxSOBA(optimizer=SGD, damping=0.1, batch=BATCH, certificate_rows=ROWS)
    result = minimize(Problem(judge, fit, Zero(), data), jnp.zeros(ROWS), y0, solver, steps=600, every=600, throw=False)
    x = np.asarray(result.x)
    assert np.mean(x[wrong] < 0) > 0.8
    assert np.mean(x[~wrong] < 0) < 0.2


# --- an entry of x for each row ---------------------------------------------------------------------------------------


def weighted(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.sigmoid(x[batch.index])[:, None] * (y[None] - batch["s"]) ** 2) + jnp.sum(y**2) / 20


CLEANING = Problem(upper, weighted, Zero(), Rows(upper=UPPER, lower=LOWER))


@pytest.mark.parametrize("name", ["SOBA", "F2SA"])
def test_only_the_entries_of_the_batch_move(name: str) -> None:
    solver = SOLVERS[name] if name != "SOBA" else ProxSOBA(0.05, 0.5, batch=BATCH, average=0.0)
    x0, y0 = jnp.zeros(ROWS), jnp.ones(3)
    key = jax.random.key(2)
    step = jax.jit(lambda state: solver.step(CLEANING, state, key)[0])
    before = step(jax.jit(solver.init)(CLEANING, x0, y0))  # the first step of SOBA has v = 0
    state = step(before)
    moved = np.flatnonzero(np.asarray(state.x) != np.asarray(before.x))
    index = solver.index(CLEANING.data, "lower", before.draws)
    assert set(moved) <= set(np.asarray(index).tolist())
    assert len(moved) > 0


# --- counts -----------------------------------------------------------------------------------------------------------

SEEN: Counter[str] = Counter()


class SpyProblem(Problem):
    """Counts the rows that each oracle looks at."""

    def grad_upper(self, x: Any, y: Any) -> Any:
        SEEN["rows"] += len(self.upper_data)
        return super().grad_upper(x, y)

    def grad_lower(self, x: Any, y: Any) -> Any:
        SEEN["rows"] += len(self.lower_data)
        return super().grad_lower(x, y)

    def grad_lower_x(self, x: Any, y: Any) -> Any:
        SEEN["rows"] += len(self.lower_data)
        return super().grad_lower_x(x, y)

    def hvp(self, x: Any, y: Any) -> Any:
        return self._counted(super().hvp(x, y))

    def cross(self, x: Any, y: Any) -> Any:
        return self._counted(super().cross(x, y))

    def _counted(self, product: Any) -> Any:
        def call(v: Any) -> Any:
            SEEN["rows"] += len(self.lower_data)
            return product(v)

        return call


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_counted_rows_are_observed_rows(name: str) -> None:
    solver, key = SOLVERS[name], jax.random.key(0)
    spy = SpyProblem(PROBLEM.upper, PROBLEM.lower, PROBLEM.regularizer, PROBLEM.data)
    with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
        state = solver.init(PROBLEM, START, START)
        for number in range(3):
            SEEN.clear()
            state, info = solver.step(spy, state, jax.random.fold_in(key, number))
            assert int(info.counts.rows) == SEEN["rows"] > 0


def test_a_solver_on_all_rows_counts_them_all() -> None:
    counts = solve(ProxBiO(AID(GradientDescent(0.5, 2), Neumann(0.5, 3)), 0.05), 5).counts
    calls = counts.grad_lower + counts.hvp + counts.cross + counts.grad_lower_x
    assert counts.rows == ROWS * calls + 64 * counts.grad_upper


SAME = ("SABA", "minibatch")  # remember less than SRBA does: their turn is in the longer suite

# --- resumption -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SAME else []) for n in SOLVERS])
def test_a_run_goes_on_in_the_middle_of_an_epoch_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    straight = solve(SOLVERS[name], 17, every=4)
    solve(SOLVERS[name], 8, every=4, callbacks=[Checkpoint(tmp_path)])  # an epoch has six batches, or four
    resumed = solve(SOLVERS[name], 17, every=4, resume=tmp_path)
    assert same_bits(resumed.state.state, straight.state.state)
    assert resumed.counts.as_dict() == straight.counts.as_dict()
    assert resumed.stationarity == straight.stationarity


# --- certificates -----------------------------------------------------------------------------------------------------


def test_the_certificate_on_all_rows_is_not_understated() -> None:
    result = solve(SOLVERS["SOBA"], 40)
    x = np.asarray(result.x)
    slope = x - MINIMUM + 0.3 * np.sign(x)  # the shortest element of grad Phi + dh, with what |x|_1 allows at 0:
    truth = np.linalg.norm(np.where(x == 0, np.maximum(np.abs(x - MINIMUM) - 0.3, 0), slope))
    assert truth <= result.stationarity * (1 + 1e-9)
    assert result.stationarity < 1.1 * truth
    np.testing.assert_allclose(result.y, x - MIDDLE, atol=1e-6)  # y is solved for, on all rows


def test_an_estimate_from_some_rows_has_a_standard_error() -> None:
    solver = ProxSOBA(0.05, 0.5, batch=BATCH, average=0.5, certificate_rows=48)
    result = solve(solver, 40)
    at = result.state.state
    exact = np.asarray(at.y) - np.mean(UPPER["t"], axis=0)  # f_y on all rows
    product = np.mean(LOWER["a"], axis=0) * np.asarray(at.v)  # - g_xy v on all rows
    truth = np.linalg.norm(product + np.asarray(at.subgradient))
    assert result.certificate_rows == 48
    assert "estimate from 48 rows" in str(result)
    assert 0 < result.standard_error < 0.2 * np.linalg.norm(exact)
    assert abs(result.stationarity - 2 * result.standard_error - truth) < 4 * result.standard_error


def test_an_estimate_needs_all_rows_where_each_has_an_entry_of_x() -> None:
    with pytest.raises(ValueError, match="certificate_rows must be None"):
        minimize(CLEANING, jnp.zeros(ROWS), START, ProxSOBA(0.1, 0.1, certificate_rows=10), steps=1)


@pytest.mark.slow
def test_polish_ends_with_a_certificate_on_all_rows() -> None:
    rough = solve(SOLVERS["SOBA"], 100)
    result = solve(SOLVERS["SOBA"], 100, polish=True)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, BEST, atol=1e-5)
    assert result.counts.rows > rough.counts.rows
    assert [row["step"] for row in result.history] == sorted(row["step"] for row in result.history)


def test_a_tolerance_is_confirmed_on_all_rows() -> None:
    result = solve(SOLVERS["SRBA"], 2000, tol=1e-4, every=100)
    assert result.status is Status.CONVERGED
    assert np.linalg.norm(np.asarray(result.x) - BEST) < 1e-3
    assert result.steps < 2000
