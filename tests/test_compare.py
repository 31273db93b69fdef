"""Several solvers on one ledger, and the picture of it."""

import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import (
    AID,
    CG,
    L1,
    AdaptiveProxBiO,
    Counts,
    GradientDescent,
    Problem,
    ProxBiO,
    compare,
    minimize,
    paper_solver,
)
from proxbi.analytic import smooth_nonquadratic
from suite import SUITE


def by_solver(rows, name):
    return [row for row in rows if row["solver"] == name]


@pytest.fixture(scope="module")
def made():
    return smooth_nonquadratic(10.0, regularizer=L1(0.05))


@pytest.fixture(scope="module")
def solvers():
    letters = {"alpha": 1.0, "beta": 0.05, "eta": 0.5, "T": 3, "cg_steps": 3}
    return {"plain": paper_solver("proximal BiO-AID", **letters), "m": paper_solver("proximal BiO-AIDm", **letters)}


@pytest.fixture(scope="module")
def rows(made, solvers):
    return compare(made.problem, solvers, made.x0, made.y0, budget=400)


def test_rows_are_those_of_minimize(rows, made, solvers):
    for name, solver in solvers.items():
        own = by_solver(rows, name)
        alone = minimize(made.problem, made.x0, made.y0, solver, steps=own[-1]["step"], every=1)
        assert [row["objective"] for row in own[1:]] == [row["objective"] for row in alone.history]
        assert [row["hvp"] for row in own[1:]] == [row["hvp"] for row in alone.history]
        assert own[-1]["calls"] == alone.state.counts.total < alone.counts.total  # the certificate is in no row


def test_the_ledger_adds_up_and_ends_with_the_budget(rows, solvers):
    kinds = list(Counts().as_dict())
    for row in rows:
        assert row["calls"] == sum(row[kind] for kind in kinds)
    for name in solvers:
        own = by_solver(rows, name)
        assert own[0]["step"] == own[0]["calls"] == own[0]["seconds"] == 0
        assert own[-2]["calls"] < 400 <= own[-1]["calls"]
        assert [row["status"] for row in own] == [""] * (len(own) - 1) + ["BUDGET"]
        assert np.all(np.diff([row["seconds"] for row in own]) >= 0)
    assert len({tuple(row) for row in rows}) == 1  # the same columns everywhere


def test_the_budget_ends_a_run_in_the_middle_of_a_chunk(rows, made, solvers):
    long = compare(made.problem, solvers, made.x0, made.y0, budget=400, every=1000)
    for name in solvers:
        (_, last), own = by_solver(long, name), by_solver(rows, name)
        assert (last["step"], last["calls"], last["objective"]) == tuple(
            own[-1][key] for key in ("step", "calls", "objective")
        )


def test_a_tolerance_ends_a_run(made, solvers):
    rows = compare(made.problem, solvers, made.x0, made.y0, budget=100_000, tol=1e-3)
    assert {rows[-1]["status"], by_solver(rows, "plain")[-1]["status"]} == {"CONVERGED"}
    assert rows[-1]["calls"] < 10_000


def test_a_solver_that_breaks_down_does_not_take_the_others_with_it(made, solvers):
    wild = ProxBiO(AID(GradientDescent(1e6, steps=10), CG(steps=3)), step_size=1e6)
    rows = compare(made.problem, {"wild": wild} | solvers, made.x0, made.y0, budget=200)
    assert by_solver(rows, "wild")[-1]["status"] in ("DIVERGED", "NONFINITE_START")
    assert by_solver(rows, "m")[-1]["status"] == "BUDGET"


# With one lower step and one of CG the solver believes other numbers than the true ones.
def test_with_a_reference_the_true_numbers_are_shown():
    case = SUITE["A-100"]()
    solver = {"one": ProxBiO(AID(GradientDescent(1.0, steps=1), CG(steps=1)), step_size=1.0)}
    believed = compare(case.problem, solver, case.x0, case.y0, budget=100)
    true = compare(case.problem, solver, case.x0, case.y0, budget=100, exactly=case.exactly)
    assert [row["calls"] for row in true] == [row["calls"] for row in believed]
    assert abs(true[-1]["objective"] - believed[-1]["objective"]) > 0.01
    result = minimize(case.problem, case.x0, case.y0, solver["one"], steps=true[-1]["step"])
    value = case.exactly(result.x, result.y).value + case.problem.regularizer.value(result.x)
    assert true[-1]["objective"] == pytest.approx(float(value))


def test_the_default_solver_takes_part():
    case = SUITE["C-10"]()
    rows = compare(case.problem, {"default": AdaptiveProxBiO()}, case.x0, case.y0, rtol=1e-6, exactly=case.exactly)
    assert rows[-1]["status"] == "CONVERGED"
    assert rows[-1]["objective"] == pytest.approx(0.18)


def test_bad_input_is_named(made, solvers):
    with pytest.raises(TypeError, match="solvers must be a dict"):
        compare(made.problem, list(solvers.values()), made.x0, made.y0)
    with pytest.raises(ValueError, match="budget"):
        compare(made.problem, solvers, made.x0, made.y0, budget=0)


def test_plot_shows_every_solver_in_every_panel(rows, tmp_path):
    from proxbi import plot

    figure = plot.compare(rows)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["plain", "m"]
        assert len({line.get_color() for line in axes.lines}) == 2
        assert len({line.get_linestyle() for line in axes.lines}) == 2
    gap = figure.axes[0].lines[0]
    own = by_solver(rows, "plain")
    floor = min(row["objective"] for row in rows)
    shown = [(row["calls"], row["objective"] - floor) for row in own if row["calls"] > 0 and row["objective"] > floor]
    assert np.allclose(gap.get_xydata(), shown)
    figure.savefig(tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 10_000


def test_plot_needs_a_number_to_measure_from(rows):
    from proxbi import plot

    with pytest.raises(ValueError, match="finite objective"):
        plot.compare([row | {"objective": float("nan")} for row in rows])


def test_scalars_and_trees_can_be_compared():
    problem = Problem(
        lambda x, y: jnp.sum((y["a"] - 1) ** 2) + (y["b"] - x["s"]) ** 2,
        lambda x, y: jnp.sum((y["a"] - x["v"]) ** 2) + (y["b"] - 1) ** 2,
    )
    x0, y0 = {"s": jnp.array(0.0), "v": jnp.zeros(2)}, {"a": jnp.zeros(2), "b": jnp.array(0.0)}
    solver = ProxBiO(AID(GradientDescent(0.5, steps=1), CG(steps=3)), step_size=0.4)
    rows = compare(problem, {"one": solver}, x0, y0, budget=300)
    assert rows[-1]["objective"] < 1e-6
