"""The theory's constants, potential and checks: right numbers, and checks that can fail."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import Direct, GradientDescent, Nesterov, Newton, analytic, theory
from proxbi.theory import Constants, SharpConstants, potential
from proxbi.theory.checks import compare

KINDS = {
    "A": analytic.spectral_quadratic,
    "stiff": analytic.stiff_quadratic,
    "B": analytic.kl_dial,
    "C": analytic.sharp_minimum,
    "D": analytic.smooth_nonquadratic,
    "E": analytic.ridge_hyperparameters,
}
kinds = pytest.mark.parametrize("kind", KINDS)


def reference(made):
    return theory.closed_forms(made.solution, made.value, made.gradient)


def points(made, count, seed=0):
    """Random x near x0, in the domain of h."""
    noise = np.random.default_rng(seed).normal(size=(count, *made.x0.shape))
    return jax.vmap(lambda z: made.problem.regularizer.prox(made.x0 + 0.5 * z, 1e-9))(noise)


# --- constants


def test_the_papers_constants_are_those_of_lemma_1_and_proposition_1():
    mu, L, M, tau, rho = 0.2, 3.0, 0.7, 0.4, 1.3
    c = Constants(mu, L, M, tau, rho)
    kappa = L / mu
    printed = L + (2 * L**2 + tau * M**2) / mu + (rho * L * M + L**3 + tau * M * L) / mu**2 + rho * L**2 * M / mu**3
    gamma = (
        3 * L**2 + 3 * tau**2 * M**2 / mu**2 + 6 * L**2 * (1 + math.sqrt(kappa)) ** 2 * (kappa + rho * M / mu**2) ** 2
    )
    block = L + L**2 / mu + tau * M / mu + rho * L * M / mu**2
    assert c.kappa == pytest.approx(kappa)
    assert c.L_Phi == pytest.approx(printed)
    assert c.L_Phi_corrected == pytest.approx((1 + kappa) * block)
    assert c.Gamma == pytest.approx(gamma)
    assert c.beta == pytest.approx(1 / (2 * (printed + gamma + kappa**2)))
    assert (c.alpha, c.weight) == (1 / L, 1.0)
    assert c.eta == pytest.approx((math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1))
    assert c.L_Phi < c.L_Phi_corrected  # M < 1: the printed exponent is the wrong way


@pytest.mark.parametrize("kappa", [1.0, 1.0 + 1e-9, 1.5, 10.0, 1e4])
def test_T_is_the_least_that_is_enough(kappa):
    c = Constants(1 / kappa, 1.0, 1.0, 0.0, 0.0)
    assert c.contraction <= 1 / 8 * (1 + 1e-12)
    if c.T > 1:
        assert (1 + kappa) * (1 - kappa**-0.5) ** (c.T - 1) > 1 / 8
    assert (1 - 1 / kappa) ** (2 * c.T_plain) <= 1 / 8
    if kappa == 1:
        assert (c.T, c.T_plain, c.eta) == (1, 1, 0.0)


def test_the_sharper_step_fulfils_the_condition_of_proposition_1():
    c = SharpConstants(0.1, 1.0, C=3.0, ell=0.2, L_Phi=5.0)
    assert 1 / (4 * c.beta) >= c.L_Phi / 2 + c.C**2 / (2 * c.weight) + c.weight * c.ell**2 / 4
    assert c.young == pytest.approx(c.C * c.ell)


def test_equal_blocks_give_the_lumped_constants():
    mu, L, M, tau, rho = 0.2, 3.0, 0.7, 0.4, 1.3
    lumped = Constants(mu, L, M, tau, rho)
    blocks = dict(f_xx=L, f_xy=L, f_yy=L, tau_x=tau, tau_y=tau, rho_x=rho, rho_y=rho)
    sharp = SharpConstants.from_blocks(mu=mu, L=L, cross=L, adjoint=M / mu, **blocks)
    assert sharp.L_Phi == pytest.approx(lumped.L_Phi_corrected)
    assert sharp.ell == pytest.approx(lumped.kappa)
    assert lumped.Gamma > sharp.C**2


def test_only_the_sharper_step_has_units():
    """f times 100: the step may shrink by 100, and in the sharper form does just that."""
    sharp = [SharpConstants.from_blocks(mu=0.1, L=1, cross=1, adjoint=s, f_yy=s, rho_y=1.0) for s in (1.0, 100.0)]
    paper = [Constants(0.1, L, M=L, tau=0.0, rho=1.0) for L in (1.0, 100.0)]
    assert sharp[0].beta / sharp[1].beta == pytest.approx(100)
    assert paper[0].beta / paper[1].beta > 1e6


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (dict(mu=0.0, L=1.0, M=1.0, tau=0.0, rho=0.0), "mu must be finite and > 0"),
        (dict(mu=2.0, L=1.0, M=1.0, tau=0.0, rho=0.0), "mu must be at most L"),
        (dict(mu=1.0, L=1.0, M=1.0, tau=-1.0, rho=0.0), "tau must be finite and >= 0"),
        (dict(mu=1.0, L=math.inf, M=1.0, tau=0.0, rho=0.0), "L must be finite"),
    ],
)
def test_impossible_constants_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        Constants(**arguments)
    with pytest.raises(ValueError, match="ell must be"):
        SharpConstants(0.1, 1.0, 1.0, 0.0, 1.0)


# --- analytic problems


@jax.jit
def _residuals(problem, closed, x):
    """|g_y(x, y*(x))|, and grad Phi by automatic differentiation against its closed form."""
    solution, value, gradient = closed
    return jnp.linalg.norm(problem.grad_lower(x, solution(x))), jnp.linalg.norm(jax.grad(value)(x) - gradient(x))


@kinds
@pytest.mark.parametrize("kappa", [1.5, 2.0, 300.0])
def test_closed_forms_solve_their_equations(kind, kappa):
    made = KINDS[kind](kappa)
    for x in points(made, 3):
        lower, upper = _residuals(made.problem, (made.solution, made.value, made.gradient), x)
        assert lower < 1e-11
        assert upper < 1e-9 * (1 + jnp.linalg.norm(made.gradient(x)))


def test_a_computed_reference_agrees_with_the_closed_forms():
    made = analytic.smooth_nonquadratic(300.0)
    computed = jax.jit(theory.computed(made.problem, Newton(Direct()), made.y0, Direct()))
    for x in points(made, 3):
        found = computed(x)
        assert np.allclose(found.solution, made.solution(x), rtol=1e-8)
        assert np.allclose(found.value, made.value(x), rtol=1e-8)
        assert np.allclose(found.gradient, made.gradient(x), rtol=1e-6)


@jax.jit
def _everything(problem, closed, xs):
    """At every x: grad Phi, y*, the hypergradient at (the first x, y*), and the spectrum of g_yy there."""
    solution, gradient = closed

    def at(x):
        y = solution(x)
        hessian = jax.jacfwd(lambda at: problem.grad_lower(xs[0], at))(y)
        upper_x, upper_y = problem.grad_upper(xs[0], y)
        estimate = upper_x - problem.cross(xs[0], y)(jnp.linalg.solve(hessian, upper_y))
        return gradient(x), y, estimate, jnp.linalg.eigvalsh(hessian)

    return jax.vmap(at)(xs)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("kappa", [2.0, 300.0])
def test_the_constants_bound_what_they_claim_to(kind, kappa):
    made = KINDS[kind](kappa)
    sharp, problem = made.sharp, made.problem
    xs = points(made, 40)
    keep = np.max(np.abs(jax.vmap(made.solution)(xs)), axis=1) <= made.region
    gradients, ys, estimates, spectra = _everything(problem, (made.solution, made.gradient), xs[keep])
    xs = xs[keep]

    def steepest(values, at):
        return np.max(np.linalg.norm(values[1:] - values[:-1], axis=1) / np.linalg.norm(at[1:] - at[:-1], axis=1))

    slack = 1 + 1e-9
    assert steepest(gradients, xs) <= sharp.L_Phi * slack
    assert steepest(ys, xs) <= sharp.ell * slack
    assert steepest(estimates, ys) <= sharp.C * slack
    assert sharp.mu <= np.min(spectra) * slack
    assert np.max(spectra) <= sharp.L * slack
    # The paper's are bounds as well, and never the smaller ones.
    assert made.constants.mu == pytest.approx(sharp.mu)
    assert made.constants.L_Phi_corrected >= sharp.L_Phi * (1 - 1e-9)
    assert made.constants.Gamma >= sharp.C**2
    assert made.constants.beta < sharp.beta
    assert made.floor <= made.value(xs[0]) + problem.regularizer.value(xs[0])


def test_problem_c_refuses_other_powers():
    with pytest.raises(ValueError, match="power must be"):
        analytic.sharp_minimum(2.0, power=1.2)


def test_the_prox_of_the_power_three_halves_is_a_minimiser():
    h, grid = analytic.ThreeHalves(0.7), jnp.linspace(-3, 3, 60001)
    for x in (-2.0, -0.1, 0.0, 1e-6, 1.3):
        for step in (0.1, 5.0):
            cost = step * h.strength * jnp.abs(grid) ** 1.5 + (grid - x) ** 2 / 2
            assert abs(h.prox(jnp.array(x), step) - grid[jnp.argmin(cost)]) < 2e-4


# --- runs


def test_repeated_steps_are_the_steps():
    made = analytic.smooth_nonquadratic(20.0)
    for make in (lambda n: Nesterov(1.0, 0.6, n), lambda n: GradientDescent(1.0, n)):
        once, counts = make(17).solve(made.problem, made.x0, made.y0)
        again, counted = theory.Repeated(make(1), 17).solve(made.problem, made.x0, made.y0)
        assert np.array_equal(once, again)
        assert counts.grad_lower == counted.grad_lower == 17


def test_the_potential_is_taken_at_the_warm_start():
    made = analytic.kl_dial(30.0)
    solver, weight = theory.algorithm_1(made.sharp), made.sharp.weight
    trace = theory.record(made.problem, solver, reference(made), made.x0, made.y0, 5)
    state = solver.init(made.problem, made.x0, made.y0)
    lower = Nesterov(made.sharp.alpha, made.sharp.eta, made.sharp.T)
    solve = jax.jit(lambda x, y: lower.solve(made.problem, x, y)[0])
    step = jax.jit(lambda state: solver.step(made.problem, state, jax.random.key(0))[0])
    for k in range(6):
        x, warm = state.x, state.y
        y = solve(x, warm)
        twice = solve(x, y)
        potential, wrong = (made.value(x) + 7 / 8 * weight * jnp.sum((at - made.solution(x)) ** 2) for at in (y, twice))
        assert trace.potential(weight)[k] == pytest.approx(float(potential), rel=1e-12)
        assert trace.error[k] == pytest.approx(float(jnp.linalg.norm(y - x)), rel=1e-6)
        assert wrong < potential  # T steps twice: not the same number
        state = step(state)
        assert trace.moved[k] == pytest.approx(float(jnp.linalg.norm(state.x - x)), rel=1e-12)


@pytest.fixture(scope="module")
def run():
    """Problem A with the sharper constants: a run in which every inequality holds."""
    made = analytic.spectral_quadratic(10.0)
    return made, theory.record(made.problem, theory.algorithm_1(made.sharp), reference(made), made.x0, made.y0, 400)


def test_one_program_serves_every_kappa_and_form(run):
    """The fixture compiled problem A; other data, T and beta of the same shapes must not."""
    compiled = potential._record._cached._cache_size()
    made = analytic.spectral_quadratic(1000.0, seed=3)
    for constants in (made.sharp, made.constants):
        theory.record(made.problem, theory.algorithm_1(constants), reference(made), made.x0, made.y0, 400)
    assert compiled > 0
    assert potential._record._cached._cache_size() == compiled


def verdicts(trace, constants, floor=0.0, **options):
    return {check.name: check.holds for check in theory.audit(trace, constants, floor, region=4.0, **options)}


def test_every_inequality_holds_along_a_run(run):
    made, trace = run
    found = verdicts(trace, made.sharp)
    assert len(found) == 11
    assert all(found.values())


CORRUPTIONS = {
    "Lemma 1, smoothness": lambda c, t: (dataclasses.replace(c, L_Phi=c.L_Phi / 2), t),
    "Lemma 1, hypergradient": lambda c, t: (dataclasses.replace(c, C=c.C / 4), t),
    "y* Lipschitz": lambda c, t: (dataclasses.replace(c, ell=c.ell / 2), t),
    "(eq: 3), lower loop": lambda c, t: (c, t._replace(warm=t.warm / 50)),
    "(eq: 3)": lambda c, t: (c, t._replace(error=t.error * np.linspace(1, 60, len(t.error)) ** 2)),
    "(eq: 4)": lambda c, t: (c, t._replace(phi=t.phi[::-1])),
    "Proposition 1": lambda c, t: (c, t._replace(phi=-t.phi)),
    "Theorem 1, sum of decreases": lambda c, t: (c, t._replace(moved=4 * t.moved)),
    "Corollary 1, distance": lambda c, t: (c, t._replace(distance=20 * t.distance)),
    "Corollary 1, gradient mapping": lambda c, t: (c, t._replace(mapping=20 * t.mapping)),
    "region of the constants": lambda c, t: (c, t._replace(extent=2 * t.extent)),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_check_can_fail(run, name):
    made, trace = run
    constants, corrupted = CORRUPTIONS[name](made.sharp, trace)
    assert not verdicts(corrupted, constants)[name]


def test_a_wrong_weight_or_index_is_noticed(run):
    """The potential without its lower term is not monotone enough, and H of the wrong index neither."""
    made, trace = run
    late = trace._replace(error=np.append(trace.error[1:], 0.0), warm=trace.warm)
    assert not verdicts(late, made.sharp)["Lemma 1, hypergradient"]
    assert not verdicts(trace, made.sharp, floor=float(np.min(trace.value)) + 0.4)["Theorem 1, sum of decreases"]


def test_nothing_holds_of_a_run_that_broke_down(run):
    made, trace = run
    broken = trace._replace(**{name: np.full_like(series, np.nan) for name, series in trace._asdict().items()})
    assert not any(verdicts(broken, made.sharp).values())


def test_comparisons_know_about_rounding():
    ones = np.ones(3)
    assert compare("", ones, ones, 1.0).holds
    assert compare("", ones * (1 + 1e-11), ones, 1.0).holds
    assert not compare("", ones * 1.001, ones, 1.0).holds
    assert compare("", ones, -ones, 1.0).ratio == math.inf  # an increase where a decrease was asked for
    hidden = compare("", ones * 1e-12, ones * 1e-13, 1.0)
    assert (hidden.holds, hidden.resolved) == (True, 0)
    assert math.isnan(hidden.ratio)
