"""Estimates for a problem of one's own: spectra by Lanczos, and `verify`; and the fits of rates."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import L1, Box, Problem, analytic, theory
from proxbi.theory import rates
from proxbi.theory.lanczos import cross_norm, lanczos, upper_smoothness


def test_lanczos_is_exact_when_it_takes_all_steps_and_inside_when_it_does_not():
    matrix = np.random.default_rng(0).normal(size=(40, 40))
    matrix = jnp.asarray(matrix @ matrix.T / 40)
    values = np.linalg.eigvalsh(matrix)
    product = jax.tree_util.Partial(jnp.matmul, matrix)
    whole = lanczos(product, jnp.zeros(40), 100, jax.random.key(0))
    assert np.allclose([whole.smallest, whole.largest], values[[0, -1]], atol=1e-12)
    few = lanczos(product, jnp.zeros(40), 8, jax.random.key(0))
    assert values[0] < few.smallest < few.largest < values[-1]
    assert np.min(np.abs(values - float(few.largest))) <= few.largest_residual


@pytest.mark.parametrize("spectrum", [np.ones(6), np.r_[-2.0, np.ones(5)], np.r_[0.0, 0.0, 1.0, 1.0, 1.0, 3.0]])
def test_lanczos_goes_on_where_the_krylov_space_ends(spectrum):
    product = jax.tree_util.Partial(jnp.multiply, jnp.asarray(spectrum))
    found = lanczos(product, jnp.zeros(6), 6, jax.random.key(1))
    assert np.allclose([found.smallest, found.largest], [spectrum.min(), spectrum.max()], atol=1e-12)


def test_spectra_of_a_problem():
    made = analytic.spectral_quadratic(100.0)
    data, at = made.problem.data, (made.x0, made.y0)
    ritz = theory.lower_spectrum(made.problem, *at)
    assert np.allclose([ritz.smallest, ritz.largest], [0.01, 1.0])
    assert cross_norm(made.problem, *at, 30, jax.random.key(0)) == pytest.approx(np.linalg.norm(data["B"], 2))
    upper = upper_smoothness(made.problem, *at, 40, jax.random.key(0))
    assert upper == pytest.approx(np.linalg.norm(data["C"], 2) ** 2)


def test_verify_finds_that_the_lower_level_is_not_strongly_convex():
    problem = Problem(lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: jnp.sum(y**4 / 4 - x * y))
    report = theory.verify(problem, jnp.ones(3), jnp.zeros(3))
    assert report.violated == ["1.1: g strongly convex in y"]
    assert not report.ok
    assert math.isnan(report.margin)
    assert "ridge" in str(report)


@pytest.mark.slow
def test_verify_reports_constants_and_margin():
    made = analytic.smooth_nonquadratic(10.0)
    report = theory.verify(made.problem, made.x0, made.y0)
    assert report.ok, str(report)
    assert report.estimated
    assert 0.1 <= report.measured["mu"] <= report.measured["L"] <= 1
    assert report.measured["|g_xy|"] == pytest.approx(np.linalg.norm(made.problem.data["B"], 2), rel=1e-6)
    assert 0.5 < report.margin < 1
    assert "estimates" in str(report)
    given = theory.verify(made.problem, made.x0, made.y0, constants=made.sharp)
    assert given.ok
    assert not given.estimated
    wrong = dataclasses.replace(made.sharp, L_Phi=1e-3, C=1e-3)
    blamed = theory.verify(made.problem, made.x0, made.y0, constants=wrong)
    assert not blamed.ok
    assert "the constants given are wrong" in str(blamed)
    too_long = theory.verify(made.problem, made.x0, made.y0, max_T=2)
    assert too_long.checks == []


def flat(x, y):
    return jnp.sum((y - x) ** 2)


@pytest.mark.slow
@pytest.mark.hours
@pytest.mark.parametrize(
    ("upper", "lower", "violated"),
    [
        (lambda x, y: jnp.sum(jnp.abs(y)), flat, "2.1: gradients Lipschitz"),
        (lambda x, y: jnp.sum(jnp.abs(y) ** 1.5), flat, "2.1: gradients Lipschitz"),
        (lambda x, y: jnp.sum(y**2), lambda x, y: flat(x, y) + jnp.sum(jnp.abs(y - 0.2)), "2.1: gradients Lipschitz"),
        (
            lambda x, y: jnp.sum(y**2),
            lambda x, y: flat(x, y) + jnp.sum(jnp.maximum(y - 0.5, 0) ** 2),
            "2.2: Hessian, Jacobian Lipschitz",
        ),
        (lambda x, y: jnp.sum(y), flat, "1.3: bounded level sets"),
        (lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: jnp.sum((y - jnp.tanh(x)) ** 2), "1.3: bounded level sets"),
    ],
    ids=["kink in f", "power 1.5 in f", "kink in g", "kink in g_y", "linear f", "saturated"],
)
def test_verify_names_the_violated_assumption(upper, lower, violated):
    report = theory.verify(Problem(upper, lower), jnp.ones(3), jnp.zeros(3), steps=20)
    assert report.violated == [violated], str(report)
    assert violated in str(report).splitlines()[-1]


@pytest.mark.slow
@pytest.mark.hours
def test_verify_says_that_hyper_cleaning_has_unbounded_level_sets():
    from proxbi import datasets
    from proxbi.cleaning import hyper_cleaning

    rows = datasets.digits()
    train, trusted = (rows.take(part) for part in (np.arange(40), np.arange(40, 80)))
    train, trusted = (part._replace(features=part.features.astype(np.float64)) for part in (train, trusted))
    problem = hyper_cleaning(train, trusted, 1e-2)
    report = theory.verify(problem, jnp.full(40, 0.1), jnp.zeros((10, train.features.shape[1])), steps=10)
    assert report.violated == ["1.3: bounded level sets"], str(report)
    assert all(check.holds for check in report.checks)


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_verify_takes_pytrees_boxes_and_single_precision():
    problem = Problem(
        lambda x, y: jnp.sum((y["a"] - 1) ** 2) + jnp.sum(y["b"] ** 2),
        lambda x, y: jnp.sum((y["a"] - x) ** 2) + jnp.sum((y["b"] - jnp.sin(x)) ** 2),
        Box(-1.0, 1.0),
    )
    x, y = jnp.full(3, 0.3, jnp.float32), {"a": jnp.zeros(3, jnp.float32), "b": jnp.zeros(3, jnp.float32)}
    report = theory.verify(problem, x, y, steps=20)
    assert report.ok, str(report)


def test_verify_refuses_bad_arguments():
    with pytest.raises(TypeError, match="problem must be"):
        theory.verify(None, jnp.ones(1), jnp.ones(1))
    with pytest.raises(ValueError, match="steps"):
        theory.verify(Problem(flat, flat, L1(0.1)), jnp.ones(1), jnp.ones(1), steps=0)


def test_rates_refuse_what_they_are_not_about():
    with pytest.raises(ValueError, match="theta"):
        rates.predicted_slope(0.5)
    with pytest.raises(ValueError, match="theta"):
        rates.predicted_order(0.5)
    assert math.isnan(rates.geometric_slope(np.array([1.0, 0.0, 0.0]))[0])
