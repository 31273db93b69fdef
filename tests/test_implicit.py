"""Pairs make a good inverse and a good model; corrections stop where they say, and say what is left."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from proxbi import (
    L0,
    L1,
    MCP,
    AdaptiveProxBiO,
    Box,
    CappedL1,
    Evaluation,
    GroupL2,
    Implicit,
    Outcome,
    Problem,
    Simplex,
    Status,
    Zero,
    _lbfgs,
    analytic,
    minimize,
)
from proxbi.hypergradient import implicit
from proxbi.linear import LinearStatus
from proxbi.problem import ridged
from proxbi.solvers._proximal_newton import propose


def spd(size: int, kappa: float, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    rotation = np.linalg.qr(draw.normal(size=(size, size)))[0]
    return rotation @ np.diag(np.geomspace(1 / kappa, 1, size)) @ rotation.T


def pushed(memory: _lbfgs.Pairs, matrix: np.ndarray, step: np.ndarray, keep: bool = True) -> _lbfgs.Pairs:
    product = matrix @ step
    parts = (jnp.asarray(part) for part in (step, product, step @ product, keep))
    return _lbfgs.push(memory, *parts)


def collected(matrix: np.ndarray, pairs: int, seed: int = 1) -> _lbfgs.Pairs:
    memory = _lbfgs.empty(jnp.zeros(len(matrix)), pairs)
    for s in np.random.default_rng(seed).normal(size=(pairs + 2, len(matrix))):  # two are pushed out again
        memory = pushed(memory, matrix, 1e-9 * s)
    return memory


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_the_newest_pair_is_satisfied_by_the_inverse_and_by_the_model() -> None:
    matrix = spd(12, 100.0)
    memory = collected(matrix, 5)
    step, product, _ = memory.newest
    seen = 0.01 * (step @ product) / (product @ product)  # of 1 / lambda_max as this pair shows it: hides nothing
    np.testing.assert_allclose(memory.precondition(product), step + seen * product, rtol=1e-9)
    model = _lbfgs.model(memory)
    np.testing.assert_allclose(model @ step, product, rtol=1e-9)
    dense = jax.vmap(lambda u: model @ u)(jnp.eye(12))
    inverse = jax.vmap(lambda u: memory.precondition(u))(jnp.eye(12))
    assert np.linalg.eigvalsh(dense).min() > 0
    assert np.linalg.eigvalsh(inverse).min() > 0


def bfgs(matrix: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The inverse BFGS matrix by its recursion, M <- (I - s q' / <s, q>) M (I - q s' / <s, q>) + s s' / <s, q>."""
    newest = matrix @ steps[-1]
    m = np.eye(len(matrix)) * (steps[-1] @ newest) / (newest @ newest)
    for s in steps:
        q = matrix @ s
        v = np.eye(len(s)) - np.outer(s, q) / (s @ q)
        m = v @ m @ v.T + np.outer(s, s) / (s @ q)
    return m


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 7, 8, 9, 40, 41, 100])
@pytest.mark.parametrize("n", [6, 30])
def test_the_preconditioner_is_the_bfgs_matrix(n: int, number: int) -> None:
    matrix, draw = spd(n, 100.0), np.random.default_rng(4)
    steps = draw.normal(size=(number, n)) * 10.0 ** draw.integers(-6, 6, size=(number, 1))  # lengths do not matter
    memory = _lbfgs.empty(jnp.zeros(n), 32)
    for s in steps:
        memory = pushed(memory, matrix, s)
    left = number if number <= 40 else 32 + (number - 1) % 8 + 1  # the oldest of five blocks is emptied at once
    r = draw.normal(size=n)
    newest = steps[(number - 1) // 8 * 8 :] @ matrix  # H s of the newest block, and what it shows of lambda_max
    seen = 0.01 * min((s @ q) / (q @ q) for s, q in zip(steps[(number - 1) // 8 * 8 :], newest, strict=True))
    expected = bfgs(matrix, steps[-left:]) @ r + seen * r
    np.testing.assert_allclose(memory.precondition(jnp.asarray(r)), expected, rtol=1e-7)


def test_with_as_many_conjugate_pairs_as_dimensions_both_are_exact() -> None:
    matrix = spd(6, 1e4)
    memory = _lbfgs.empty(jnp.zeros(6), 6)
    for direction in np.linalg.eigh(matrix)[1].T:
        memory = pushed(memory, matrix, direction)
    u = jnp.arange(1.0, 7.0)
    np.testing.assert_allclose(_lbfgs.model(memory) @ u, matrix @ u, rtol=1e-8)
    seen = 0.01 / np.linalg.eigvalsh(matrix).max()  # of 1 / lambda_max, which hides nothing
    np.testing.assert_allclose(memory.precondition(matrix @ u), u + seen * (matrix @ u), rtol=1e-6)


def test_without_pairs_the_inverse_is_the_identity_and_the_model_zero() -> None:
    memory, u = _lbfgs.empty(jnp.zeros(3), 4), jnp.arange(3.0)
    np.testing.assert_array_equal(memory.precondition(u), u)
    np.testing.assert_array_equal(_lbfgs.model(memory) @ u, 0)
    np.testing.assert_allclose(_lbfgs.model(memory).scaled(1, 2.5) @ u, 2.5 * u, rtol=1e-12)


def test_a_model_can_be_scaled_and_shifted() -> None:
    model, u = _lbfgs.model(collected(spd(6, 30.0), 4)), jnp.arange(6.0)
    np.testing.assert_allclose(model.scaled(0.3, 2.0) @ u, 0.3 * (model @ u) + 2.0 * u, rtol=1e-12)


def test_a_pair_that_is_not_to_be_kept_changes_nothing() -> None:
    memory = collected(spd(6, 30.0), 4)
    after = pushed(memory, -np.eye(6), np.ones(6), keep=False)
    assert all(np.array_equal(a, b) for a, b in zip(memory, after, strict=True))


@jax.jit  # once for all: to compile takes longer than to run
def corrected(matrix: Any, b: Any, accuracy: float, memory: _lbfgs.Pairs) -> Any:
    problem = Problem(lambda x, y: jnp.sum(y), lambda x, y: y @ matrix @ y / 2)
    start = Implicit().init(problem, b, b)
    at = implicit._start(problem, b, start._replace(carry=start.carry._replace(pairs=memory)), jnp.asarray(accuracy))
    precondition = implicit._preconditioner(None, memory)
    return implicit._correction(lambda v: matrix @ v, b, at, jnp.asarray(True), precondition, jnp.int32(200))


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
@pytest.mark.parametrize("accuracy", [0.3, 1e-2, 1e-6])
def test_the_error_of_a_correction_is_what_it_says(accuracy: float, scale: float) -> None:
    matrix, b = spd(40, 1e3), scale * np.random.default_rng(2).normal(size=40)
    e = corrected(matrix, b, accuracy, _lbfgs.empty(jnp.zeros(40), 8))
    off = np.asarray(e.step) / scale - np.linalg.solve(matrix, b / scale)
    true = np.sqrt(off @ matrix @ off)
    assert e.cg.status == LinearStatus.OK
    assert true <= 3 * accuracy * float(e.size) / scale
    said = float(e.left) / scale
    assert true / 30 - 1e-12 <= said <= 30 * true + 1e-12
    warm = corrected(matrix, b, accuracy, e.cg.observed)
    assert warm.cg.matvecs <= e.cg.matvecs  # what the first solve learned


def test_pairs_of_a_far_larger_matrix_hide_no_error() -> None:
    """Where H was 1e8 along a direction, and is 1 now, errors along it were taken for 1e-4 of what they are."""
    matrix, direction = spd(20, 30.0), np.eye(20)[3]
    memory = collected(matrix + 1e8 * np.outer(direction, direction), 16)
    for s in np.random.default_rng(5).normal(size=(6, 20)):
        memory = pushed(memory, matrix, s - s[3] * direction)
    b = direction + 0.01 * np.random.default_rng(6).normal(size=20)
    e = corrected(matrix, b, 0.01, memory)
    off = np.asarray(e.step) - np.linalg.solve(matrix, b)
    true = np.sqrt(off @ matrix @ off)
    assert e.cg.status == LinearStatus.OK
    assert true <= 0.1 * float(e.size)
    assert true <= 10 * float(e.left)


@pytest.mark.parametrize(
    ("matrix", "status"),
    [
        (np.diag([1.0, -1.0]), LinearStatus.NEGATIVE_CURVATURE),
        (np.diag([1.0, 0.0]), LinearStatus.NEGATIVE_CURVATURE),
        (np.diag([1.0, np.nan]), LinearStatus.NONFINITE),
    ],
)
def test_matrices_that_have_no_inverse_are_named(matrix: np.ndarray, status: LinearStatus) -> None:
    e = corrected(matrix, np.ones(2), 1e-6, _lbfgs.empty(jnp.zeros(2), 4))
    assert e.cg.status == status


HYPERGRADIENT = Implicit(memory=10)


@jax.jit
def again(problem: Problem, x: Any, last: Evaluation, accuracy: Any) -> Evaluation:
    """The evaluation at x, started from the last, with no subgradient."""
    return HYPERGRADIENT(problem, x, last, jnp.zeros_like(x), accuracy)


def evaluated(problem: Problem, x: Any, y: Any, accuracy: float) -> Evaluation:
    """A first evaluation, at x from y."""
    return again(problem, x, HYPERGRADIENT.init(problem, x, y), jnp.asarray(accuracy, y.dtype))


@pytest.mark.parametrize("start", [0.0, 30.0, -1000.0])
def test_newton_solves_a_lower_problem_from_far_away(start: float) -> None:
    """Accuracy is relative to the way that y went: the second evaluation, which starts nearby, is that accurate."""
    made = analytic.smooth_nonquadratic(1000.0)
    problem, x = made.problem, made.x0
    first = evaluated(problem, x, jnp.full(made.y0.shape, start), 1e-7)
    np.testing.assert_allclose(first.grad, made.gradient(x), rtol=1e-3)
    found = again(problem, x, first, jnp.asarray(1e-7))
    assert first.outcome == found.outcome == Outcome.OK
    np.testing.assert_allclose(found.y, made.solution(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.lower_residual, np.linalg.norm(problem.grad_lower(x, found.y)), atol=1e-12)
    np.testing.assert_allclose(found.grad, made.gradient(x), rtol=1e-5)
    np.testing.assert_allclose(found.value, made.value(x), rtol=1e-9)


@pytest.mark.parametrize("accuracy", [0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("make", [analytic.smooth_nonquadratic, analytic.ridge_hyperparameters], ids=["D", "E"])
def test_the_error_is_as_small_as_was_asked_for_and_no_more_than_it_says(make: Any, accuracy: float) -> None:
    made = make(100.0)
    found = evaluated(made.problem, made.x0, made.y0, accuracy)
    assert found.outcome == Outcome.OK
    assert found.error <= accuracy * np.linalg.norm(found.grad)
    true = np.linalg.norm(found.grad - made.gradient(made.x0))
    assert true <= 3 * float(found.error) + 1e-12
    off = abs(float(found.value - made.value(made.x0)))
    assert off <= 10 * float(found.value_error) + 1e-13


@pytest.mark.parametrize("from_solution", [True, False])
def test_the_adjoint_gives_the_gradient(from_solution: bool) -> None:
    """Also where there is nothing left to do for y."""
    made = analytic.ridge_hyperparameters(100.0)
    y = made.solution(made.x0)
    found = evaluated(made.problem, made.x0, y if from_solution else made.y0, 1e-9)
    np.testing.assert_allclose(found.grad, made.gradient(made.x0), rtol=1e-7)
    rhs = made.problem.grad_upper(made.x0, found.y)[1]
    left = rhs - made.problem.hvp(made.x0, found.y)(found.v)
    assert found.adjoint_residual <= 1e-7
    relative = np.linalg.norm(left) / np.linalg.norm(rhs)
    np.testing.assert_allclose(relative, found.adjoint_residual, rtol=0.1, atol=1e-12)


def test_a_lower_gradient_of_zero_leaves_y_alone() -> None:
    problem = Problem(lambda x, y: jnp.sum(y * x), lambda x, y: jnp.sum((y - x) ** 2))
    found = evaluated(problem, jnp.ones(2), jnp.ones(2), 1e-6)
    np.testing.assert_array_equal(found.y, 1.0)
    np.testing.assert_allclose(found.grad, 2.0)
    assert found.counts.grad_lower == 1


@pytest.mark.parametrize("start", [0.0, 20.0, -0.999])
def test_lower_steps_stay_where_g_is_finite(start: float) -> None:
    """g has a barrier at -1, which whole Newton steps from 20 cross."""
    problem = Problem(
        lambda x, y: jnp.sum(y * x), lambda x, y: jnp.sum(0.5 * 1e-3 * y**2 + x * y - 0.1 * jnp.log(1 + y))
    )
    x = jnp.array([1.0, 3.0])
    found = evaluated(problem, x, jnp.full(2, start), 1e-6)
    assert found.outcome == Outcome.OK
    assert np.all(found.y > -1)
    np.testing.assert_allclose(1e-3 * found.y + x, 0.1 / (1 + found.y), rtol=1e-5)


def test_a_start_where_g_is_not_finite_is_named() -> None:
    problem = Problem(lambda x, y: jnp.sum(y * x), lambda x, y: jnp.sum(0.5 * (y - x) ** 2 - 0.1 * jnp.log(1 + y)))
    found = evaluated(problem, jnp.ones(2), jnp.array([0.0, -2.0]), 0.1)
    assert found.outcome == Outcome.NONFINITE


def test_the_work_is_bounded() -> None:
    """A solve that has begun takes a step, and there are at most 50 of these: no more than that on top."""
    made = analytic.smooth_nonquadratic(1000.0)
    hypergradient, problem, x = Implicit(inner_steps=5, memory=1), made.problem, made.x0
    start = hypergradient.init(problem, x, jnp.full_like(made.y0, -1000.0))
    found = jax.jit(hypergradient)(problem, x, start, jnp.zeros_like(x), jnp.asarray(1e-7))
    assert found.outcome == Outcome.UNSOLVED
    assert found.counts.hvp <= 5 + implicit._MOST_NEWTON_STEPS


def model_objective(h: Any, x: np.ndarray, d: np.ndarray, matrix: np.ndarray, u: np.ndarray) -> float:
    return float(d @ (u - x) + 0.5 * (u - x) @ matrix @ (u - x) + h.value(jnp.asarray(u)))


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
@pytest.mark.parametrize("h", [Zero(), L1(0.3), Box(-0.5, 0.5), Simplex(), GroupL2(0.5, [0, 0, 0, 1, 1, 1])], ids=repr)
def test_the_model_is_minimised_by_its_prox_alone(h: Any) -> None:
    """Against plain prox-gradient steps on the same model, many of them."""
    memory = collected(spd(6, 30.0), 4)
    b = _lbfgs.model(memory)
    dense = np.asarray(jax.vmap(lambda u: b @ u)(jnp.eye(6)))
    x = np.full(6, 1 / 6)
    d = np.random.default_rng(3).normal(size=6)
    target = propose(h, jnp.asarray(x), jnp.asarray(d), b, jnp.asarray(True))
    u, step = jnp.asarray(x), 1 / np.linalg.norm(dense, 2)
    u = jax.lax.fori_loop(0, 3000, lambda _, u: h.prox(u - step * (d + dense @ (u - x)), step), u)
    best, start = model_objective(h, x, d, dense, np.asarray(u)), model_objective(h, x, d, dense, x)
    reached = model_objective(h, x, d, dense, np.asarray(target.x))
    assert reached - best <= 0.05 * (start - best)
    # the subgradient belongs to h at the new point: its prox puts it back there
    moved = h.prox(target.x + 0.1 * target.subgradient, 0.1)
    np.testing.assert_allclose(moved, target.x, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("h", [L0(0.3), MCP(0.5, 3.0), CappedL1(0.5, 1.0)], ids=repr)
def test_entries_that_a_nonconvex_h_would_move_far_are_held(h: Any) -> None:
    """The others go where they would go without them."""
    b = _lbfgs.model(collected(0.02 * jnp.eye(4), 1))
    x, d = jnp.array([2.0, 2.5, 9.0, 9.0]), jnp.array([0.0, 0.0, 1e-3, -1e-3])
    curved = jnp.asarray(True)
    free, held = propose(h, x, d, b, curved), propose(h, x, d, b, curved, 1.0)
    np.testing.assert_array_equal(free.x[:2], 0)
    assert float(jnp.linalg.norm(held.x - x)) <= 1.0
    np.testing.assert_allclose(held.x[2:], free.x[2:], rtol=1e-6)
    assert held.proxes > free.proxes
    # the subgradient belongs to h at the new point, held or not
    back = h.prox(held.x + 1e-3 * held.subgradient, 1e-3)
    np.testing.assert_allclose(back, held.x, atol=1e-9)


def test_a_lower_problem_without_second_derivatives_is_negative_curvature() -> None:
    problem = Problem(lambda x, y: jnp.sum(y**2), lambda x, y: jnp.sum(x * y))
    found = evaluated(problem, jnp.ones(2), jnp.ones(2), 0.1)
    assert found.outcome == Outcome.NEGATIVE_CURVATURE


class Conditioned(Problem):
    """With the exact inverse of g_yy."""

    def preconditioner(self, x: Any, y: Any) -> Any:
        inverse = jnp.linalg.inv(jax.hessian(self.lower, argnums=1)(x, y, self.data))
        return lambda r: inverse @ r


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_a_problem_may_bring_its_own_preconditioner() -> None:
    """With the best there is, every correction is one step of CG, whatever kappa is."""
    made = analytic.ridge_hyperparameters(1e4)
    plain, p = made.problem, made.problem
    own = Conditioned(p.upper, p.lower, p.regularizer, p.data)
    found = [evaluated(problem, made.x0, made.y0, 1e-6) for problem in (plain, own)]
    np.testing.assert_allclose(found[1].grad, made.gradient(made.x0), rtol=1e-6)
    assert found[1].counts.hvp == 3 < found[0].counts.hvp  # one for y, one for v, and one for the residual of v
    assert found[1].carry.pairs is None
    answers = [minimize(problem, made.x0, made.y0, rtol=1e-6) for problem in (plain, own)]
    assert answers[0].status is answers[1].status is Status.CONVERGED
    np.testing.assert_allclose(answers[0].x, answers[1].x, atol=1e-3)
    assert answers[1].counts.hvp < answers[0].counts.hvp


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_a_lower_solve_that_asks_for_more_than_single_precision_has_ends() -> None:
    """A kernel matrix with kappa = 6e3: below some thousand roundings of y, steps only move it about."""
    points = np.linspace(0, 1, 40)
    kernel = np.exp(-((points[:, None] - points) ** 2) / 0.1) + 3e-3 * np.eye(40)
    data = {"K": jnp.asarray(kernel, jnp.float32), "b": jnp.asarray(np.sin(9 * points), jnp.float32)}
    problem = Conditioned(
        lambda x, y, d: jnp.sum(y) * x, lambda x, y, d: 0.5 * y @ (d["K"] @ y) - x * (d["b"] @ y), data=data
    )
    found = evaluated(problem, jnp.ones((), jnp.float32), jnp.zeros(40, jnp.float32), 1e-7)
    assert found.outcome <= Outcome.ROUGH
    assert found.counts.grad_lower < 15 * 4  # in each of four rounds
    best = np.linalg.solve(np.float64(data["K"]), np.float64(data["b"]))
    off = np.float64(found.y) - best
    assert off @ kernel @ off < 1e-4 * best @ kernel @ best


# === Damping: lower levels that are convex, and no more ===============================================================

FLAT_ROWS = jax.random.normal(jax.random.key(5), (4, 6))  # fewer rows than columns


def flat_lower(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((FLAT_ROWS @ y - x) ** 2) / 2


def flat_upper(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum((y - 1) ** 2) / 2 + jnp.sum((x - 1) ** 2) / 2


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_a_flat_lower_level_is_refused_and_damping_opts_in() -> None:
    x0, y0 = jnp.zeros(4), jnp.zeros(6)
    assert minimize(Problem(flat_upper, flat_lower), x0, y0, throw=False).status.failed
    damped = minimize(Problem(flat_upper, flat_lower), x0, y0, AdaptiveProxBiO(Implicit(damping=0.1)), rtol=1e-6)
    ridge = Problem(flat_upper, lambda x, y: flat_lower(x, y) + 0.05 * jnp.sum(y**2))
    known = minimize(ridge, x0, y0)
    assert damped.status is known.status is Status.CONVERGED
    assert_allclose(damped.x, known.x, rtol=1e-5)
    assert_allclose(damped.y, known.y, rtol=1e-5)
    assert damped.objective == pytest.approx(known.objective, rel=1e-8)


def test_the_oracles_of_a_damped_problem_are_those_with_the_term() -> None:
    x, y, v = jnp.arange(4.0), jnp.arange(6.0), jnp.ones(6)
    damped = ridged(Problem(flat_upper, flat_lower), 0.1)
    ridge = Problem(flat_upper, lambda x, y: flat_lower(x, y) + 0.05 * jnp.sum(y**2))
    for name in ("value_upper", "grad_upper", "value_and_grad_upper", "value_lower", "grad_lower", "grad_lower_x"):
        jax.tree.map(assert_allclose, getattr(damped, name)(x, y), getattr(ridge, name)(x, y))
    jax.tree.map(assert_allclose, damped.value_and_grad_lower(x, y), ridge.value_and_grad_lower(x, y))
    for name in ("hvp", "cross"):
        assert_allclose(getattr(damped, name)(x, y)(v), getattr(ridge, name)(x, y)(v), rtol=1e-12, atol=1e-12)
    assert damped.preconditioner(x, y) is None
    assert ridged(ridge, None) is ridge


@pytest.mark.parametrize("damping", [0.0, -1.0, float("nan")])
def test_damping_is_positive(damping: float) -> None:
    with pytest.raises(ValueError, match="damping must be finite and > 0"):
        Implicit(damping=damping)


def test_newton_ends_where_curvatures_are_far_apart() -> None:
    """UNSOLVED after fifty steps: a loose CG stops before it sees the flat directions, and each step left much the same
    error in them. Rows on one side of a plane, hardly any penalty, and features of very different sizes.
    """
    rows, features = 60, 30
    for number in (15, 22):  # of 24 drawn problems the two that ended so
        rows_key, new_key, sizes_key = jax.random.split(jax.random.split(jax.random.key(0), 24)[number], 3)
        sizes = 10.0 ** jax.random.uniform(sizes_key, (features,), minval=-2.0, maxval=1.0)
        data = [(jax.random.normal(key, (rows, features)) + 0.5) * sizes[None] for key in (rows_key, new_key)]
        problem = Problem(
            lambda x, y, data: jnp.mean(jax.nn.softplus(-jnp.dot(data[1], y))),
            lambda x, y, data: jnp.mean(jax.nn.softplus(-jnp.dot(data[0], y))) + jnp.exp(x) * jnp.sum(y**2) / 2,
            data=data,
        )
        x, y, hypergradient = jnp.array(-22.0), jnp.zeros(features), Implicit()
        found = jax.jit(hypergradient)(problem, x, hypergradient.init(problem, x, y), jnp.array(0.0), 0.1)
        assert Outcome(int(found.outcome)) is Outcome.OK
