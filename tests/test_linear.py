"""The adjoint system: the right answer, or a residual and a status that say it is not. Never a silent wrong one."""

from typing import Any

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxbi import CG, Direct, Neumann
from proxbi.linear import LinearInfo, LinearStatus

OK, BUDGET, NEGATIVE_CURVATURE, NONFINITE, STALLED = LinearStatus
EPS = float(jnp.finfo(float).eps)


def spd(spectrum: Any, seed: int = 0) -> np.ndarray:
    """A random symmetric matrix with these eigenvalues."""
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(spectrum),) * 2))[0]
    a = rotation @ np.diag(spectrum) @ rotation.T
    return (a + a.T) / 2


@jax.jit
def solve(solver: Any, a: Any, b: Any, v0: Any = None) -> tuple[Any, LinearInfo]:
    """`solver` on a dense matrix."""
    return solver.solve(lambda v: a @ v, b, v0)


def residual(a: Any, b: Any, v: Any) -> float:
    return float(np.linalg.norm(b - a @ v) / (np.linalg.norm(b) or 1))


# --- systems that have an answer --------------------------------------------------------------------------------------

# The peers' failures (A = I returned 0, a scalar system returned 0, diag(1..5) an iterate too early), and more.
SOLVABLE = {
    "identity": (np.eye(3), np.array([3.0, -1.0, 2.0])),
    "identity, one unknown": (np.eye(1), np.array([0.25])),
    "scalar": (np.array([[2.0]]), np.array([0.5])),
    "a tiny scalar": (np.array([[1e-12]]), np.array([1.0])),
    "diagonal 1 to 5": (np.diag(np.arange(1.0, 6.0)), np.ones(5)),
    "condition 1e3": (spd(np.geomspace(1e-3, 1, 20)), np.ones(20)),
    "condition 1e6": (spd(np.geomspace(1e-6, 1, 8)), np.ones(8)),
    "right side in an eigenspace": (np.diag([1.0, 2.0, 2.0]), np.array([0.0, 1.0, 1.0])),
    "singular, consistent": (np.diag([2.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0])),
    "right side of size 1e-200": (np.diag([1.0, 3.0]), np.array([1.0, 2.0]) * 1e-200),
    "right side of size 1e200": (np.diag([1.0, 3.0]), np.array([1.0, 2.0]) * 1e200),
    "matrix of size 1e-150": (np.diag([1.0, 3.0]) * 1e-150, np.array([1.0, 2.0])),
}


@pytest.mark.parametrize("tol", [1e-6, 1e-9])
@pytest.mark.parametrize("name", SOLVABLE)
def test_cg_solves(name: str, tol: float) -> None:
    a, b = SOLVABLE[name]
    v, info = solve(CG(500, tol), a, b)
    assert info.status == OK
    assert residual(a / np.abs(a).max(), b / np.abs(b).max(), v * np.abs(a).max() / np.abs(b).max()) <= tol
    assert float(info.residual) <= tol
    assert v.any()


def test_cg_needs_one_iteration_for_each_eigenvalue() -> None:
    assert solve(CG(), np.eye(7), np.arange(7.0))[1].iterations == 1
    assert solve(CG(), *SOLVABLE["scalar"])[1].iterations == 1
    assert solve(CG(tol=1e-12), *SOLVABLE["diagonal 1 to 5"])[1].iterations == 5
    assert solve(CG(tol=1e-12), np.diag([1.0, 2.0, 2.0, 5.0]), np.ones(4))[1].iterations == 3


def test_a_product_with_h_is_counted_each_time() -> None:
    a, b = SOLVABLE["diagonal 1 to 5"]
    calls = []

    def matvec(v: Any) -> Any:
        calls.append(1)
        return jnp.asarray(a) @ v

    for v0 in (None, jnp.arange(5.0)):
        calls.clear()
        with jax.disable_jit():
            _, info = CG(tol=1e-12).solve(matvec, jnp.asarray(b), v0)
        assert info.matvecs == len(calls) == 6 + (v0 is not None)  # 5 steps, one check at the end, one at a warm start


@pytest.mark.parametrize("tol", [0.0, 1e-12])
def test_a_warm_start_at_the_solution_costs_one_product(tol: float) -> None:
    a, b = np.diag([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0])
    v, info = solve(CG(tol=tol), a, b, np.linalg.solve(a, b))
    assert (int(info.status), int(info.iterations), int(info.matvecs)) == (OK, 0, 1)
    np.testing.assert_array_equal(v, [1.0, 0.5, 0.25])


def test_a_warm_start_far_away_does_no_harm() -> None:
    a, b = SOLVABLE["condition 1e3"]
    for size in (1e-100, 1e10, 1e100):
        _, info = solve(CG(500, 1e-10), a, b, np.full(20, size))
        assert info.status == OK or (info.status in (BUDGET, STALLED) and info.residual > 1e-10)
    assert solve(CG(500, 1e-10), a, b, np.full(20, 10.0))[1].status == OK


@pytest.mark.parametrize("v0", [None, np.ones(3), np.full(3, np.nan)], ids=["cold", "warm", "start NaN"])
@pytest.mark.parametrize("a", [np.eye(3), -np.eye(3), np.zeros((3, 3)), np.full((3, 3), np.nan)])
def test_the_answer_for_b_zero_is_zero(a: np.ndarray, v0: Any) -> None:
    v, info = solve(CG(), a, np.zeros(3), v0)
    np.testing.assert_array_equal(v, 0)
    assert info.matvecs == 0
    if v0 is None or np.isfinite(v0).all():
        assert info.status == OK
        assert info.residual == 0


def test_pytrees() -> None:
    a = spd([1.0, 2.0, 3.0, 4.0, 5.0])
    b = {"p": jnp.array([[1.0, 2.0]]), "q": (jnp.array(3.0), jnp.array([4.0, 5.0]))}
    vector, unravel = jax.flatten_util.ravel_pytree(b)
    for solver in (CG(tol=1e-13), Direct(), Neumann(0.3, 600)):
        v, info = solver.solve(lambda v: unravel(a @ jax.flatten_util.ravel_pytree(v)[0]), b)
        assert info.status == OK
        assert jax.tree.structure(v) == jax.tree.structure(b)
        np.testing.assert_allclose(jax.flatten_util.ravel_pytree(v)[0], np.linalg.solve(a, vector), rtol=1e-10)


def test_float32_keeps_its_dtype_and_its_range() -> None:
    b = jnp.array([1.0, 2.0], jnp.float32)
    for size in (1e-30, 1.0, 1e30):
        v, info = CG().solve(lambda v: jnp.array([1.0, 4.0], jnp.float32) * v, b * np.float32(size))
        assert v.dtype == info.residual.dtype == jnp.float32
        assert info.status == OK
        np.testing.assert_allclose(v / np.float32(size), [1.0, 0.5], rtol=1e-5)


# --- systems that do not ----------------------------------------------------------------------------------------------

NAN, INF = np.nan, np.inf
BROKEN = {
    "indefinite": (np.diag([1.0, -2.0, 3.0]), np.ones(3), NEGATIVE_CURVATURE),
    "indefinite, seen late": (np.diag([1.0, 2.0, 3.0, -1e-3]), np.array([1.0, 1.0, 1.0, 1e-3]), NEGATIVE_CURVATURE),
    "negative definite": (-spd([1.0, 2.0, 3.0]), np.ones(3), NEGATIVE_CURVATURE),
    "negative scalar": (np.array([[-2.0]]), np.ones(1), NEGATIVE_CURVATURE),
    "singular, inconsistent": (np.diag([1.0, 0.0]), np.ones(2), NEGATIVE_CURVATURE),
    "zero": (np.zeros((3, 3)), np.ones(3), NEGATIVE_CURVATURE),
    "skew": (np.array([[0.0, 1.0], [-1.0, 0.0]]), np.ones(2), NEGATIVE_CURVATURE),
    "NaN matrix": (np.full((3, 3), NAN), np.ones(3), NONFINITE),
    "NaN in one entry": (np.diag([1.0, NAN, 2.0]), np.ones(3), NONFINITE),
    "infinite matrix": (np.diag([1.0, INF, 1.0]), np.ones(3), NONFINITE),
    "NaN right side": (np.eye(3), np.array([1.0, NAN, 1.0]), NONFINITE),
    "infinite right side": (np.eye(3), np.array([1.0, -INF, 1.0]), NONFINITE),
}


@pytest.mark.parametrize("v0", [None, 0.1], ids=["cold", "warm"])
@pytest.mark.parametrize("name", BROKEN)
def test_cg_says_what_is_wrong(name: str, v0: float | None) -> None:
    a, b, status = BROKEN[name]
    start = None if v0 is None else np.full(len(b), v0)
    v, info = solve(CG(), a, b, start)
    assert info.status == status
    assert np.isfinite(v).all()
    if status is NEGATIVE_CURVATURE:  # the last good iterate, with its own residual
        np.testing.assert_allclose(info.residual, residual(a, b, v), rtol=1e-9)
        assert info.residual > 1e-4


def test_direct_says_what_is_wrong() -> None:
    for name, (a, b, status) in BROKEN.items():
        if name == "skew":
            continue  # lineax is told that H is symmetric, and a Hessian is
        v, info = solve(Direct(), a, b)
        assert info.status == status, name
        assert np.isfinite(v).all(), name
        assert status is NONFINITE or not v.any(), name


def test_the_usual_cg_returns_zero_as_a_success_on_nan() -> None:
    """Why there is a CG here: these are what jax and lineax answer. If this fails they have learnt better."""
    b = jnp.ones(3)
    v, _ = jax.scipy.sparse.linalg.cg(lambda v: jnp.nan * v, b)
    np.testing.assert_array_equal(v, 0)
    operator = lineax.FunctionLinearOperator(
        lambda v: jnp.nan * v, jax.eval_shape(lambda: b), lineax.positive_semidefinite_tag
    )
    found = lineax.linear_solve(operator, b, lineax.CG(1e-6, 1e-6), throw=False)
    assert found.result == lineax.RESULTS.successful
    np.testing.assert_array_equal(found.value, 0)
    assert CG().solve(lambda v: jnp.nan * v, b)[1].status == NONFINITE


def test_a_start_that_is_not_finite() -> None:
    v, info = solve(CG(), np.eye(3), np.ones(3), np.array([1.0, NAN, 1.0]))
    assert info.status == NONFINITE
    np.testing.assert_array_equal(v, 0)


def test_a_matrix_that_breaks_down_later() -> None:
    """NaN along directions past the first: what the first step reached is kept."""
    a, b = jnp.array([1.0, 10.0]), jnp.array([2.0, 1.0])
    v, info = CG(tol=1e-12).solve(lambda p: jnp.where(jnp.isclose(p[0] * b[1], p[1] * b[0]), a * p, jnp.nan), b)
    assert (info.status, info.iterations) == (NONFINITE, 2)
    np.testing.assert_allclose(v, b * (b @ b) / (b @ (a * b)))
    np.testing.assert_allclose(info.residual, np.linalg.norm(b - a * v) / np.linalg.norm(b))


def test_a_budget_that_is_too_small() -> None:
    a, b = SOLVABLE["condition 1e3"]
    v, info = solve(CG(3, 1e-6), a, b)
    assert (info.status, info.iterations) == (BUDGET, 3)
    np.testing.assert_allclose(info.residual, residual(a, b, v), rtol=1e-9)
    assert info.residual > 1e-2
    assert solve(CG(100, 1e-6), a, b)[1].status == OK


def test_a_budget_that_is_just_enough() -> None:
    a, b = SOLVABLE["diagonal 1 to 5"]
    assert solve(CG(5, 1e-12), a, b)[1].status == OK
    assert solve(CG(4, 1e-12), a, b)[1].status == BUDGET


def test_a_tolerance_below_rounding_stalls_and_says_so() -> None:
    a, b = spd(np.geomspace(1e-9, 1, 30)), np.ones(30)
    v, info = solve(CG(100_000, 1e-15), a, b)
    assert info.status == STALLED
    assert info.iterations < 10_000
    assert info.residual > 8 * EPS
    np.testing.assert_allclose(info.residual, residual(a, b, v), rtol=0.2)  # both are rounding errors
    assert solve(CG(100_000, 0.0), *SOLVABLE["diagonal 1 to 5"])[1].status == OK  # 0 means rounding level


# --- preconditioners --------------------------------------------------------------------------------------------------


def test_an_exact_preconditioner_needs_one_iteration() -> None:
    a, b = SOLVABLE["condition 1e3"]
    inverse = jnp.asarray(np.linalg.inv(a))
    _, info = solve(CG(10, 1e-9, lambda r: inverse @ r), a, b)
    assert (info.status, info.iterations) == (OK, 1)
    _, info = solve(CG(10, 1e-9, lambda r: 1e9 * (inverse @ r)), a, b, np.ones(20))  # its scale does not matter
    assert (info.status, info.iterations) == (OK, 1)


def test_a_diagonal_preconditioner_helps_where_it_should() -> None:
    scale = np.geomspace(1e-3, 1e3, 20)
    a = np.diag(scale) @ spd(np.linspace(1, 2, 20)) @ np.diag(scale)
    b = scale * np.ones(20)
    diagonal = jnp.asarray(1 / scale**2)
    assert solve(CG(30, 1e-8), a, b)[1].status == BUDGET
    assert solve(CG(30, 1e-8, lambda r: diagonal * r), a, b)[1].status == OK


@pytest.mark.parametrize(
    ("preconditioner", "status"),
    [
        (lambda r: -r, NEGATIVE_CURVATURE),
        (lambda r: jnp.array([1.0, -2.0, 1.0]) * r, NEGATIVE_CURVATURE),
        (jnp.zeros_like, NEGATIVE_CURVATURE),
        (lambda r: jnp.nan * r, NONFINITE),
    ],
    ids=["negative", "indefinite", "zero", "NaN"],
)
@pytest.mark.parametrize("v0", [None, np.full(3, 0.1)], ids=["cold", "warm"])
def test_a_bad_preconditioner_is_noticed(preconditioner: Any, status: LinearStatus, v0: Any) -> None:
    v, info = solve(CG(preconditioner=preconditioner), np.diag([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 0.5]), v0)
    assert info.status == status
    assert np.isfinite(v).all()


# --- properties -------------------------------------------------------------------------------------------------------

SIZE = 5


@st.composite
def systems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Definite, indefinite, singular or not finite; any size; from any start."""
    exponent = st.floats(-6, 3)
    spectrum = np.array([10 ** draw(exponent) for _ in range(SIZE)])
    spectrum *= [draw(st.sampled_from([1, 1, 1, 1, 1, -1, 0])) for _ in range(SIZE)]
    a = spd(spectrum, draw(st.integers(0, 10**6)))
    entry = st.floats(-1, 1) | st.sampled_from([0.0, 1.0])
    b = np.array([draw(entry) for _ in range(SIZE)]) * 10.0 ** draw(st.integers(-50, 50))
    v0 = np.array([draw(entry) for _ in range(SIZE)]) * 10.0 ** draw(st.integers(-5, 5))
    if draw(st.sampled_from([False] * 9 + [True])):
        draw(st.sampled_from([a.ravel(), b, v0]))[draw(st.integers(0, SIZE - 1))] = draw(st.sampled_from([NAN, INF]))
    return a, b, v0


@given(systems(), st.sampled_from([0.0, 1e-14, 1e-10, 1e-6, 1e-2]))
@example((np.eye(SIZE), np.ones(SIZE), np.ones(SIZE)), 0.0)
def test_ok_is_never_a_lie(system: tuple[np.ndarray, np.ndarray, np.ndarray], tol: float) -> None:
    a, b, v0 = system
    v, info = solve(CG(12, tol), a, b, v0)
    assert np.isfinite(v).all()
    assert info.iterations <= 12
    if info.status == OK:
        true = residual(a, b, v)
        rounding = 20 * EPS * np.linalg.norm(a, 2) * np.linalg.norm(v) / (np.linalg.norm(b) or 1)
        assert true <= max(tol, 8 * EPS) + rounding
        assert abs(true - float(info.residual)) <= 1e-6 * true + rounding
    if not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(v0).all()):
        assert info.status == NONFINITE or not b.any()


def test_vmap_over_good_and_bad_systems_is_a_loop() -> None:
    systems = [(np.eye(3), np.ones(3)), *((a, b) for a, b, _ in BROKEN.values() if len(b) == 3)]
    systems += [(spd([1e-3, 1.0, 2.0]), np.ones(3)), (np.eye(3), np.zeros(3))]
    a, b = jnp.asarray(np.stack([a for a, _ in systems])), jnp.asarray(np.stack([b for _, b in systems]))
    for solver in (CG(2, 1e-10), Neumann(0.5, 3), Direct()):
        together = jax.jit(jax.vmap(lambda a, b, solver=solver: solve(solver, a, b)))(a, b)
        for k in range(len(systems)):
            for x, y in zip(jax.tree.leaves(together), jax.tree.leaves(solve(solver, a[k], b[k])), strict=True):
                np.testing.assert_allclose(x[k], y, rtol=1e-9, atol=1e-12)
    statuses = {int(solve(CG(2, 1e-10), *system)[1].status) for system in systems}
    assert statuses == {OK, BUDGET, NEGATIVE_CURVATURE, NONFINITE}


# --- Neumann ----------------------------------------------------------------------------------------------------------


def test_neumann_sums_the_series() -> None:
    """alpha * sum of (I - alpha H)^j b over j < N, not more and not fewer terms."""
    a, b = np.diag([1.0, 0.5, 0.2]), np.ones(3)
    for steps in (1, 2, 7):
        v, info = solve(Neumann(0.8, steps), a, b)
        series = 0.8 * sum(np.linalg.matrix_power(np.eye(3) - 0.8 * a, j) @ b for j in range(steps))
        np.testing.assert_allclose(v, series, rtol=1e-12)
        np.testing.assert_allclose(info.residual, residual(a, b, v), rtol=1e-9)
        assert (info.iterations, info.matvecs) == (steps, steps)
        assert info.status == BUDGET


def test_neumann_goes_on_from_a_warm_start() -> None:
    a, b = np.diag([1.0, 0.5, 0.2]), np.ones(3)
    v, _ = solve(Neumann(0.8, 4), a, b)
    w, info = solve(Neumann(0.8, 3), a, b, v)
    np.testing.assert_allclose(w, solve(Neumann(0.8, 7), a, b)[0], rtol=1e-12)
    assert info.matvecs == 4
    assert solve(Neumann(0.8, 500), a, b)[1].status == OK


def test_neumann_that_diverges_says_so() -> None:
    v, info = solve(Neumann(5.0, 2000), np.eye(2), np.ones(2))
    assert info.status == NONFINITE
    np.testing.assert_array_equal(v, 0)
    assert solve(Neumann(3.0, 10), np.eye(2), np.ones(2))[1].residual > 1


# --- Direct -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SOLVABLE if not name.startswith("singular")])
def test_direct_solves(name: str) -> None:
    a, b = SOLVABLE[name]
    v, info = solve(Direct(), a, b)
    assert info.status == OK
    np.testing.assert_allclose(v, np.linalg.solve(a, b), rtol=1e-8)
    assert info.matvecs == len(b) + 1


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: CG(steps=0), "steps"),
        (lambda: CG(steps=2.5), "steps"),
        (lambda: CG(tol=-1.0), "tol"),
        (lambda: CG(tol=np.nan), "tol"),
        (lambda: CG(preconditioner=3), "preconditioner"),
        (lambda: Neumann(-0.1, 5), "step_size"),
        (lambda: Neumann(0.0, 5), "step_size"),
        (lambda: Neumann(0.1, 0), "steps"),
        (lambda: Neumann(0.1, 5, tol=-1.0), "tol"),
        (lambda: Direct(tol=-1.0), "tol"),
    ],
)
def test_bad_arguments_are_named(make: Any, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        make()
