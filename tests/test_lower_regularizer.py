"""Lower levels with a prox: hypergradients against closed forms and differences, and what is said at kinks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from proxbi import (
    AID,
    CG,
    ITD,
    L1,
    MCP,
    AcceleratedGradient,
    Box,
    Direct,
    ElasticNet,
    Exact,
    GradientDescent,
    GroupL2,
    Nesterov,
    Newton,
    NonNegative,
    Nuclear,
    Optax,
    Outcome,
    Penalty,
    Problem,
    Regularizer,
    Separable,
    Simplex,
    SquaredL2,
    Status,
    Zero,
    analytic,
    minimize,
    value_and_hypergradient,
)

# --- closed forms -----------------------------------------------------------------------------------------------------

SLOW, HOURS = [pytest.mark.slow], [pytest.mark.slow, pytest.mark.hours]
FACES = {"soft threshold": analytic.soft_threshold, "box": analytic.clipped, "simplex": analytic.on_simplex}
FIXED = {
    "AID, Newton": AID(Newton(), CG(50, 1e-13)),
    "AID, proximal gradient": AID(GradientDescent(0.9, 200), CG(50, 1e-13)),
    "ITD, proximal gradient": ITD(GradientDescent(0.9, 200)),
    "ITD, accelerated": ITD(Nesterov(0.9, 0.2, 150)),
}


def relative(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("name", FACES)
def test_closed_forms_are_differences_of_the_value(name: str) -> None:
    case = FACES[name]()
    np.testing.assert_allclose(jax.grad(case.value)(case.x0), case.gradient(case.x0), rtol=1e-9)
    active = np.asarray(case.solution(case.x0))
    assert 0 < np.sum((active == 0) | (np.abs(active) == 1)) < len(active)  # the face is neither all nor nothing


@pytest.mark.parametrize("name", ["soft threshold", *(pytest.param(name, marks=SLOW) for name in ("box", "simplex"))])
def test_the_default_hypergradient_is_the_closed_form(name: str) -> None:
    case = FACES[name]()
    value, gradient, info = value_and_hypergradient(case.problem, case.x0, case.y0, accuracy=1e-8)
    assert relative(info.y, case.solution(case.x0)) < 1e-9
    assert relative(gradient, case.gradient(case.x0)) < 1e-8
    np.testing.assert_allclose(value, case.value(case.x0), rtol=1e-12)
    assert info.error <= 1e-8 * np.linalg.norm(gradient)
    np.testing.assert_array_equal(info.y == 0, case.solution(case.x0) == 0)  # zeros are zeros


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("name", ["soft threshold", *(pytest.param(name, marks=HOURS) for name in ("box", "simplex"))])
def test_hypergradients_of_fixed_work_are_the_closed_form(name: str, method: str) -> None:
    case, hypergradient = FACES[name](), FIXED[method]

    def estimate(problem: Problem, x: Any, y: Any) -> Any:
        return hypergradient(problem, x, y, hypergradient.init(problem, x, y))

    found = jax.jit(estimate)(case.problem, case.x0, case.y0)
    assert relative(found.y, case.solution(case.x0)) < 1e-8
    assert relative(found.grad, case.gradient(case.x0)) < 1e-7
    assert found.lower_residual < 1e-8


# --- differences ------------------------------------------------------------------------------------------------------

ROWS, FEATURES = 40, 12
GROUPS = np.arange(FEATURES) // 3
MATRIX = (4, 3)


class Case(NamedTuple):
    """A regression whose lower regularizer depends on x."""

    regularizer: Callable[..., Regularizer]
    x: Any
    shape: tuple[int, ...] = (FEATURES,)


CASES = {
    "lasso, one penalty": Case(lambda x: L1(jnp.exp(x)), np.array(-1.0)),
    "lasso, one for each": Case(lambda x: L1(jnp.exp(x)), np.linspace(-3, 0, FEATURES)),
    "elastic net": Case(lambda x: ElasticNet(jnp.exp(x[0]), jax.nn.sigmoid(x[1])), np.array([-0.5, 0.3])),
    "group lasso": Case(lambda x: GroupL2(jnp.exp(x), GROUPS), np.array([-1.0, -0.5, 0.0, 0.5])),
    "box": Case(lambda x: Box(-jnp.exp(x), jnp.exp(x)), np.linspace(-1.5, 1.0, FEATURES)),
    "simplex": Case(lambda x: Simplex(jnp.exp(x)), np.array(0.2)),
    "nonnegative and ridge": Case(
        lambda x, data: Separable([NonNegative(), SquaredL2(jnp.exp(x) * data["unit"])]), np.array(-1.0), (2, 6)
    ),
    "nuclear": Case(lambda x: Nuclear(jnp.exp(x)), np.array(-0.5), MATRIX),
}


RARE = ("lasso, one penalty", "nonnegative and ridge", "nuclear")


def flat(y: Any) -> Any:
    return jnp.concatenate([jnp.ravel(part) for part in y]) if isinstance(y, list) else jnp.ravel(y)


def fit(x: Any, y: Any, data: Any) -> Any:
    return jnp.mean((data["Z"] @ flat(y) - data["t"] * (1 + jnp.mean(x) / 10)) ** 2) / 2


def held_out(x: Any, y: Any, data: Any) -> Any:
    return jnp.mean((data["held_out"] @ flat(y) - data["unseen"]) ** 2) / 2 + jnp.sum(x**2) / 20


def regression(case: Case, seed: int = 0) -> tuple[Problem, Any]:
    draw = np.random.default_rng(seed)
    design = draw.normal(size=(2 * ROWS, FEATURES)) + 0.5 * draw.normal(size=(2 * ROWS, 1))
    truth = np.where(np.arange(FEATURES) % 3 == 0, 2.0, 0.1) * draw.normal(size=FEATURES)
    target = design @ truth + 0.3 * draw.normal(size=2 * ROWS)
    data = {"Z": design[:ROWS], "t": target[:ROWS], "held_out": design[ROWS:], "unseen": target[ROWS:], "unit": 1.0}
    y = jnp.zeros(case.shape)
    start = list(y) if len(case.shape) == 2 and case.shape != MATRIX else y
    problem = Problem(held_out, fit, data=jax.tree.map(jnp.asarray, data), lower_regularizer=case.regularizer)
    return problem, start


# Each is a program of its own, and takes some seconds to compile.
@pytest.mark.parametrize("name", [pytest.param(name, marks=HOURS if name in RARE else SLOW) for name in CASES])
def test_hypergradients_are_differences(name: str) -> None:
    problem, y = regression(CASES[name])
    x = jnp.asarray(CASES[name].x)

    def solve(x: Any) -> Any:
        return value_and_hypergradient(problem, x, y, accuracy=1e-9)

    _, gradient, info = solve(x)
    direction = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))
    step = 1e-4
    near, far = (solve(x + k * step * direction)[0] - solve(x - k * step * direction)[0] for k in (1, 2))
    difference = float(8 * near - far) / (12 * step)
    assert abs(float(jnp.vdot(gradient, direction)) - difference) < 1e-6 * abs(difference)
    assert info.outcome <= Outcome.ROUGH
    # y solves the lower level: a proximal gradient step, of a size that the solver never saw, leaves it where it is
    forward = jax.tree.map(lambda a, b: a - 0.37 * b, info.y, problem.grad_lower(x, info.y))
    onward = problem.lower_prox(x, forward, 0.37)
    np.testing.assert_allclose(flat(onward), flat(info.y), atol=1e-9)


def test_the_lasso_is_its_closed_form_on_the_support() -> None:
    problem, y = regression(CASES["lasso, one penalty"])
    x = jnp.array(-1.0)
    _, gradient, info = value_and_hypergradient(problem, x, y, accuracy=1e-10)
    design, target = (np.asarray(problem.data[name]) for name in ("Z", "t"))
    support = np.flatnonzero(np.asarray(info.y))
    assert 0 < len(support) < FEATURES
    part, signs = design[:, support], np.sign(np.asarray(info.y)[support])
    hessian, penalty = part.T @ part / ROWS, np.exp(-1.0)
    scaled = target * (1 + float(x) / 10)
    np.testing.assert_allclose(
        info.y[support], np.linalg.solve(hessian, part.T @ scaled / ROWS - penalty * signs), rtol=1e-9
    )
    slope = np.linalg.solve(hessian, part.T @ target / ROWS / 10 - penalty * signs)
    upper_x, upper_y = problem.grad_upper(x, info.y)
    np.testing.assert_allclose(gradient, upper_x + np.asarray(upper_y)[support] @ slope, rtol=1e-8)


@pytest.mark.slow
def test_more_coefficients_than_rows() -> None:
    """Faces on the way are flat, and g is not strongly convex; on the support of y* it is."""
    draw = np.random.default_rng(0)
    design = 0.5 * draw.normal(size=(60, 150)) + draw.normal(size=(60, 1))
    target = design[:, :5] @ np.array([3.0, -3.0, 2.0, -2.0, 1.0]) + 0.1 * draw.normal(size=60)
    data = {"Z": jnp.asarray(design[:30]), "t": jnp.asarray(target[:30])}
    data |= {"held_out": jnp.asarray(design[30:]), "unseen": jnp.asarray(target[30:])}
    problem = Problem(held_out, fit, data=data, lower_regularizer=lambda x: L1(jnp.exp(x)))

    def solve(x: Any, accuracy: float) -> Any:
        return value_and_hypergradient(problem, x, jnp.zeros(150), accuracy=accuracy)

    x, step = jnp.array(-2.5), 1e-5
    _, gradient, info = solve(x, 1e-8)
    assert info.outcome == Outcome.OK
    rough = solve(x, 0.1)
    assert abs(float(rough[1] - gradient)) <= 2 * float(rough[2].error)  # a rough solve knows that it is
    assert 0 < np.count_nonzero(info.y) <= 30
    difference = (solve(x + step, 1e-8)[0] - solve(x - step, 1e-8)[0]) / (2 * step)
    np.testing.assert_allclose(gradient, difference, rtol=1e-6)


# --- solvers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(name, marks=HOURS) for name in FACES])
def test_the_default_solver_finds_a_stationary_point(name: str) -> None:
    case = FACES[name]()
    result = minimize(case.problem, case.x0, case.y0)
    assert result.status in (Status.CONVERGED, Status.ACTIVE_SET)
    assert result.objective < float(case.value(case.x0)) - 1e-3
    np.testing.assert_allclose(result.y, case.solution(result.x), atol=1e-8)
    np.testing.assert_allclose(result.objective, case.value(result.x), rtol=1e-9)
    if result.status is Status.CONVERGED:
        forward = result.x - case.gradient(result.x)  # for a convex h, the prox-gradient step is at most dist(0, dF)
        step = np.linalg.norm(case.problem.regularizer.prox(forward, 1.0) - result.x)
        assert step <= 1.01 * result.stationarity + 1e-12
        assert result.active_set_margin > 0


@pytest.mark.slow
def test_at_a_kink_the_status_says_so() -> None:
    """y* = max(2 - e^x, 0) and f = 2 y + e^x / 2: Phi falls until y* = 0, and rises from there."""
    problem = Problem(
        lambda x, y: jnp.sum(2 * y) + jnp.sum(jnp.exp(x)) / 2,
        lambda x, y: jnp.sum((y - 2) ** 2) / 2,
        lower_regularizer=lambda x: L1(jnp.exp(x)),
    )
    result = minimize(problem, jnp.array([0.3]), jnp.zeros(1))
    assert result.status is Status.ACTIVE_SET
    assert not result.status.failed
    np.testing.assert_allclose(result.x, np.log(2.0), atol=1e-6)
    assert result.active_set_margin < 1e-6
    gradient = value_and_hypergradient(problem, jnp.log(jnp.array([2.0])), jnp.zeros(1))[1]
    left, right = -3.0, 1.0  # (1/2 - 2) e^x on the support, e^x / 2 off it
    assert min(abs(float(gradient[0]) - side) for side in (left, right)) < 1e-6  # one of the two sides, not a mean


# --- regularizers -----------------------------------------------------------------------------------------------------


MARGINS: dict[str, tuple[Regularizer, tuple[int, ...]]] = {
    "l1": (L1(np.linspace(0.2, 1.0, 6)), (6,)),
    "elastic net": (ElasticNet(1.0, 0.4), (6,)),
    "group l2": (GroupL2(1.0, [0, 0, 1, 1, 2, 2]), (6,)),
    "box": (Box(-0.5, 0.7), (6,)),
    "nonnegative": (NonNegative(), (6,)),
    "simplex": (Simplex(2.0), (6,)),
    "nuclear": (Nuclear(0.5), (3, 2)),
    "sum": (L1(0.3) + Box(-0.5, 0.6), (6,)),
    "scaled": (2.0 * L1(0.3), (6,)),
    "shifted": (L1(0.5).shift(np.full(6, 0.3)), (6,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MARGINS)
def test_within_the_margin_the_prox_stays_on_its_face(name: str) -> None:
    """Along a segment on a face the prox is as smooth as its derivative says; across a kink it is not."""
    h, shape = MARGINS[name]
    draw = np.random.default_rng(0)

    def rank(z: Any) -> int:
        """Of the derivative: the dimension of the face."""
        jacobian = jax.jacfwd(lambda at: h.prox(at, 0.7))(z).reshape(z.size, z.size)
        return int(np.linalg.matrix_rank(jacobian, tol=1e-8))

    for _ in range(5):
        z = jnp.asarray(draw.normal(size=shape))
        margin = float(h.margin(z, 0.7))
        assert 0 < margin < np.inf
        directions = draw.normal(size=(10, *shape))
        directions /= np.linalg.norm(directions.reshape(10, -1), axis=1).reshape(10, *[1] * len(shape))
        assert {rank(z + 0.99 * margin * u) for u in directions} == {rank(z)}


def test_sums_without_a_prox_are_refused() -> None:
    with pytest.raises(TypeError, match=r"GroupL2 \+ Box has no prox in closed form"):
        GroupL2(1.0) + Box(0.0, 1.0)
    with pytest.raises(TypeError, match=r"L1 \+ Simplex has no prox"):
        L1(1.0) + Simplex()
    with pytest.raises(TypeError, match="got float"):
        L1(1.0) + 2.0  # type: ignore[operator]  # wrong on purpose


def test_margins_that_are_infinite_or_unknown() -> None:
    z = jnp.array([1.0, -2.0])
    assert float(Zero().margin(z, 1.0)) == float(SquaredL2(1.0).margin(z, 1.0)) == np.inf
    assert np.isnan(float(MCP(1.0, 3.0).margin(z, 1.0)))
    both = Separable({"a": Zero(), "b": NonNegative()})
    assert float(both.margin({"a": z, "b": z}, 1.0)) == 1.0


# --- what is refused --------------------------------------------------------------------------------------------------


def problem_with(r: Any) -> Problem:
    return Problem(lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(0.1), lower_regularizer=r)


def test_bad_lower_regularizers_are_named() -> None:
    x = jnp.ones(2)
    with pytest.raises(TypeError, match="lower_regularizer must be convex, and MCP is not"):
        problem_with(MCP(1.0, 3.0))
    with pytest.raises(TypeError, match="lower_regularizer must be convex, and MCP is not"):
        minimize(problem_with(lambda x: MCP(jnp.exp(x), 3.0)), x, x)
    with pytest.raises(TypeError, match=r"lower_regularizer must be a proxbi Regularizer .* got float"):
        problem_with(0.1)
    with pytest.raises(TypeError, match="got L1"):
        problem_with(L1)
    with pytest.raises(TypeError, match="it returns float"):
        minimize(problem_with(lambda x: 0.1), x, x)
    with pytest.raises(ValueError, match="lower_regularizer"):
        minimize(problem_with(L1(np.ones(3))), x, x)
    with pytest.raises(TypeError, match="'scale' has a default"):
        problem_with(lambda x, scale=2.0: L1(scale))
    assert problem_with(Zero()).lower_regularizer is None


@pytest.mark.parametrize(
    ("hypergradient", "words"),
    [
        (AID(AcceleratedGradient(), CG()), "AcceleratedGradient needs a smooth lower level"),
        (AID(Optax(optax.sgd(0.1), 3), CG()), "Optax needs a smooth lower level"),
        (AID(Exact(), Direct()), "Direct needs"),
        (Penalty(), "Penalty needs a smooth lower level"),
    ],
    ids=["accelerated", "optax", "direct", "penalty"],
)
def test_what_knows_no_prox_says_so(hypergradient: Any, words: str) -> None:
    x = jnp.ones(2)
    problem = problem_with(L1(0.1))
    with pytest.raises(TypeError, match=words):
        hypergradient(problem, x, x, hypergradient.init(problem, x, x))
