"""Properties of every regularizer in `cases.REGULARIZERS`, checked on examples that hypothesis searches.

A check is a function of a row and an example that raises `AssertionError`; `test_prox_mutations.py` runs the same
checks on wrong implementations. References are NumPy (`prox_reference`) and never start at the prox.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings

import prox_reference as ref
import proxbi.regularizers as pr
from cases import CONVEX, ENTRIES, NORMAL, REGULARIZERS, Example, Row, examples, usual_example

Check = Callable[[Row, Example], None]


# --- what the checks share ------------------------------------------------------------------------------------------


@cache
def compiled(make: Callable[..., pr.Regularizer]) -> SimpleNamespace:
    """The functions of one row, each compiled once: parameters and steps are arguments."""

    def prox(parameters: Any, x: Any, step: Any) -> Any:
        return make(**parameters).prox(x, step)

    def value(parameters: Any, x: Any) -> Any:
        return make(**parameters).value(x)

    def envelope(x: Any, parameters: Any, step: Any) -> Any:
        return make(**parameters).envelope(x, step)

    def derivatives(primals: Any, tangents: Any) -> Any:
        def total(primals: Any) -> Any:
            return jnp.sum(prox(*primals)) + jnp.where(jnp.isfinite(value(*primals[:2])), value(*primals[:2]), 0)

        return jax.jvp(prox, primals, tangents)[1], jax.grad(total)(primals)

    return SimpleNamespace(
        prox=jax.jit(prox),
        value=jax.jit(value),
        envelope=jax.jit(jax.value_and_grad(envelope)),
        derivatives=jax.jit(derivatives),
    )


def prox(row: Row, example: Example, x: Any = None) -> Any:
    """The prox under test, as a NumPy array; it must be finite."""
    x = example.x if x is None else x
    result = np.asarray(compiled(row.make).prox(example.parameters, jnp.asarray(x), example.step))
    assert result.shape == np.shape(x)
    assert np.isfinite(result).all(), f"prox is not finite at {example}"
    return result


def search(check: Check, row: Row, number: int = 20, shrink: bool = True) -> None:
    """Let hypothesis look for an example on which `check` fails."""
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]

    @settings(max_examples=number, phases=phases, report_multiple_bugs=False)
    @given(examples(row))
    def run(example: Example) -> None:
        check(row, example)

    run()


def moderate(example: Example) -> Example:
    """Without the entries so large that in a sum nothing else would count."""
    return replace(example, x=np.where(np.abs(example.x) > 1e3, 1.0, example.x))


def neighbours(row: Row, example: Example) -> list[Any]:
    """Second points for the inequalities between two: near, far, and on the other side."""
    noise = example.rng.normal(size=row.shape)
    return [example.x + noise, example.x + 1e-6 * noise, example.x * (1 + 1e-7), -example.x, noise]


def competitors(row: Row, example: Example) -> Any:
    """Points u that must not beat the prox: members of the set, or points all over the place."""
    x, rng = example.x, example.rng
    if row.members is not None:
        return row.members(rng, x, **example.parameters)
    noise = rng.normal(size=(240, *row.shape)) * (0.1 + np.abs(x).max())
    scales = 10 ** rng.uniform(-5, 0, size=(240, *[1] * x.ndim))
    multiples = np.linspace(-0.5, 1.5, 81).reshape(-1, *[1] * x.ndim) * x
    return np.concatenate([noise, x + scales * noise, multiples, (rng.random(noise.shape) < 0.5) * x])


def squares(u: Any, row: Row) -> Any:
    """|u|^2 over the axes of one x."""
    return (u**2).sum(axis=tuple(range(-len(row.shape), 0)))


def objective(row: Row, example: Example, u: Any) -> Any:
    """What the prox minimises, with the value of the reference."""
    return row.reference(u, **example.parameters) + squares(u - example.x, row) / (2 * example.step)


def smooth(row: Row, example: Example, move: Callable[[float], Any]) -> tuple[Any, Any]:
    """Where the prox is differentiable along `move`, judged by differences, and its derivative there."""
    h = 1e-6
    before, here, after = move(-h), move(0.0), move(h)
    forward, backward = (after - here) / h, (here - before) / h
    agree = np.abs(forward - backward) <= 1e-3 * (1 + np.abs(forward))
    agree &= np.abs(after - before) <= 1e-3 * (1 + np.abs(here))  # no jump
    if not row.separable:
        agree = np.full(row.shape, agree.all() and row.unique(example.x))
    return agree, (forward + backward) / 2


# --- the checks -----------------------------------------------------------------------------------------------------


def check_global_minimiser(row: Row, example: Example) -> None:
    """No point of the reference has a lower objective; where the minimiser is unique, it is the reference's."""
    p, x = prox(row, example), example.x
    if row.term is not None:

        def term(u: Any) -> Any:
            return row.term(u, **example.parameters)

        least, _ = ref.minimum(term, x, example.step, row.kinks(**example.parameters))
        reached = term(p) + (p - x) ** 2 / (2 * example.step)
        worse = reached > least + 1e-9 * (1 + np.abs(least))
        assert not worse.any(), (
            f"at {x[worse]} the prox {p[worse]} costs {reached[worse]}, not {least[worse]}: {example}"
        )
        return
    reached = objective(row, example, p)
    rivals = competitors(row, example)
    if row.slow is not None:
        slow = row.slow(x, example.step, **example.parameters)
        rivals = np.concatenate([rivals, slow[None]])
        if row.convex:
            np.testing.assert_allclose(p, slow, rtol=0, atol=1e-6 * (1 + np.abs(x).max()))
    least = objective(row, example, rivals).min()
    assert reached <= least + 1e-9 * (1 + abs(least)), f"{reached} > {least} at {example}"


def check_value(row: Row, example: Example) -> None:
    """`value` is the reference's, at points in general and at the prox, and is a floating point scalar."""
    example = moderate(example)
    for u in (example.x, prox(row, example)):
        got = compiled(row.make).value(example.parameters, jnp.asarray(u))
        assert got.shape == ()
        assert got.dtype == jnp.float64
        want = row.reference(u, **example.parameters)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def check_monotone(row: Row, example: Example) -> None:
    """<p(x) - p(y), x - y> >= 0: true for every h, because p selects from the subdifferential of a convex function."""
    x, p = example.x, prox(row, example)
    for y in neighbours(row, example):
        products = (p - prox(row, example, y)) * (x - y)
        products, size = (products, np.abs(x - y)) if row.separable else (products.sum(), np.abs(x - y).max())
        assert (products >= -1e-9 * (1 + size)).all(), f"{products.min()} at {example} and {y}"


def check_convex(row: Row, example: Example) -> None:
    """Firm nonexpansiveness, and the three point inequality h(p) + |p-x|^2/2t + |u-p|^2/2t <= h(u) + |u-x|^2/2t."""
    x, p = example.x, prox(row, example)
    for y in neighbours(row, example):
        q = prox(row, example, y)
        gaps = (p - q) * (x - y) - (p - q) ** 2
        gaps, size = (gaps, (x - y) ** 2) if row.separable else (gaps.sum(), squares(x - y, row))
        rounding = 1e-13 * np.abs(x).max() * np.abs(x - y).max()
        assert (gaps >= -1e-9 * (1 + size) - rounding).all(), f"not firmly nonexpansive at {example} and {y}"
    example = moderate(example)
    p, others = prox(row, example), competitors(row, example)
    left = objective(row, example, p) + squares(others - p, row) / (2 * example.step)
    right = objective(row, example, others)
    assert (left <= right + 1e-9 * (1 + np.abs(left))).all(), f"three points at {example}"


def check_weakly_convex(row: Row, example: Example) -> None:
    """For a step t < 1/rho the prox is Lipschitz with constant 1 / (1 - t rho)."""
    assert row.weak is not None
    rate = 1 - example.step * row.weak(**example.parameters)
    if rate <= 0:
        return
    x, p = example.x, prox(row, example)
    for y in neighbours(row, example):
        q = prox(row, example, y)
        assert (
            np.abs(p - q) <= np.abs(x - y) / rate * (1 + 1e-6) + 1e-6 * np.abs(x - y) + 1e-9 + 1e-14 * np.abs(x)
        ).all(), f"{example}, {y}"


def check_envelope(row: Row, example: Example) -> None:
    """env <= h, and the gradient of env is (x - p) / t wherever p is differentiable."""
    x, t = example.x, example.step
    value, gradient = compiled(row.make).envelope(jnp.asarray(x), example.parameters, t)
    with np.errstate(invalid="ignore"):
        assert value <= row.reference(x, **example.parameters) * (1 + 1e-9) + 1e-9
    where, _ = smooth(row, example, lambda h: prox(row, example, x + h * (1 + np.abs(x))))
    want = (x - prox(row, example)) / t
    slack = 1e-6 * (1 + np.abs(want)) + 1e-14 * np.abs(x).max() / t
    wrong = where & (np.abs(gradient - want) > slack)
    assert not wrong.any(), f"gradient {np.asarray(gradient)[wrong]}, not {want[wrong]}, at {x[wrong]}: {example}"


def check_continuous_envelope(row: Row, example: Example) -> None:
    """Across each threshold, where the prox may jump, the envelope does not."""
    for threshold in row.thresholds(example.step, **example.parameters):
        sides = [np.full(row.shape, threshold * (1 + e)) for e in (-1e-6, 0.0, 1e-6)]
        values = [compiled(row.make).envelope(jnp.asarray(x), example.parameters, example.step)[0] for x in sides]
        steepest = (threshold + max(np.abs(prox(row, example, x)).max() for x in sides)) / example.step
        assert np.ptp(values) <= ENTRIES * 1e-5 * (1 + steepest * threshold), f"{values} around {threshold}: {example}"


def check_derivative(row: Row, example: Example) -> None:
    """In x, step and parameters at once: forward mode agrees with differences, and both modes are finite everywhere."""
    rng, p = example.rng, example.parameters
    primals = p, example.x, example.step
    tangents = (
        {name: 0.1 * rng.normal() for name in p},
        rng.normal(size=row.shape) * (1 + np.abs(example.x)),
        0.1 * example.step * rng.normal(),
    )
    forward, reverse = compiled(row.make).derivatives(
        jax.tree.map(jnp.asarray, primals), jax.tree.map(jnp.asarray, tangents)
    )
    assert np.isfinite(forward).all(), f"{forward} at {example}"
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(reverse)), f"{reverse} at {example}"

    def move(h: float) -> Any:
        parameters, x, step = jax.tree.map(lambda a, b: a + h * b, primals, tangents)
        return prox(row, replace(example, parameters=parameters, x=x, step=step))

    where, want = smooth(row, example, move)
    wrong = where & (np.abs(forward - want) > 2e-3 * (1 + np.abs(want)))
    assert not wrong.any(), (
        f"derivative {np.asarray(forward)[wrong]}, not {want[wrong]} at {example.x[wrong]}: {example}"
    )


def check_indicator(row: Row, example: Example) -> None:
    """A projection: idempotent, into the set, as near as any member, and with an obtuse angle if the set is convex."""
    x, p = example.x, prox(row, example)
    scale = 1 + np.abs(x).max()
    np.testing.assert_allclose(prox(row, example, p), p, rtol=1e-9, atol=1e-12 * scale)
    value = compiled(row.make).value
    assert value(example.parameters, jnp.asarray(p)) == 0
    inside = row.reference(x, **example.parameters) == 0
    assert value(example.parameters, jnp.asarray(x)) == (0 if inside else np.inf)
    members = members_of(row, example)
    assert (squares(p - x, row) <= squares(members - x, row) + 1e-9 * scale**2).all()
    if row.convex:
        products = ((x - p) * (members - p)).reshape(len(members), -1).sum(axis=1)
        assert (products <= 1e-9 * scale**2).all()


def members_of(row: Row, example: Example) -> Any:
    """Random points of the set of an indicator."""
    if row.members is not None:
        return row.members(example.rng, example.x, **example.parameters)
    assert row.term is not None
    pool = np.concatenate([np.linspace(-12, 12, 401), row.kinks(**example.parameters)])
    pool = pool[np.isfinite(row.term(pool, **example.parameters))]
    return example.rng.choice(pool, size=(100, *row.shape))


def always(row: Row) -> bool:
    """Every row."""
    return True


CHECKS: list[tuple[Check, Callable[[Row], bool]]] = [
    (check_global_minimiser, always),
    (check_value, always),
    (check_monotone, always),
    (check_convex, lambda row: row.convex),
    (check_weakly_convex, lambda row: row.weak is not None),
    (check_envelope, always),
    (check_continuous_envelope, lambda row: row.thresholds(1.0, **usual_example(row).parameters) != []),
    (check_derivative, always),
    (check_indicator, lambda row: row.indicator),
]
# Near its jump this prox hangs on rounding, and so on how it is compiled: it is tested as users run it.
AS_USERS_RUN_IT = {("derivative", "log-sum")}


def _marks(check: Check, row: Row) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if (check.__name__[6:], row.name) in AS_USERS_RUN_IT else []


PAIRS = [
    pytest.param(check, row, id=f"{check.__name__[6:]}-{row.name}", marks=_marks(check, row))
    for check, applies in CHECKS
    for row in REGULARIZERS
    if applies(row)
]
every_row = pytest.mark.parametrize("row", REGULARIZERS, ids=lambda row: row.name)


@pytest.mark.parametrize(("check", "row"), PAIRS)
def test_property(check: Check, row: Row) -> None:
    search(check, row, number=60 if check is check_global_minimiser else 20)


# --- ties -----------------------------------------------------------------------------------------------------------

MATRIX = np.diag([2.0, 2.0])


@pytest.mark.parametrize(
    ("h", "step", "x", "chosen"),
    [
        (pr.NegativeCappedL1(1.0, 2.0), 0.5, [0.0, -0.0], [0.5, 0.5]),
        (pr.NegativeCappedL1(3.0, 2.0), 1.0, [0.0, -0.5], [2.0, -2.0]),
        (pr.CappedL1(1.0, 2.0), 1.0, [2.5, -2.5], [1.5, -1.5]),  # below 2 cap: soft, not x
        (pr.CappedL1(1.0, 0.5), 4.0, [2.0, -2.0], [0.0, 0.0]),  # above: 0, not x
        (pr.L0(2.0), 1.0, [2.0, -2.0], [0.0, 0.0]),
        (pr.MCP(1.0, 4.0), 4.0, [4.0, -4.0], [0.0, 0.0]),  # step = theta: the whole segment
        (pr.MCP(1.0, 1.0), 4.0, [2.0, -2.0], [0.0, 0.0]),
        (pr.SCAD(1.0, 3.0), 2.0, [3.0, -3.0], [1.0, -1.0]),  # step = a - 1
        (pr.SCAD(1.0, 3.0), 3.0, [3.5, -3.5], [0.5, -0.5]),
        (pr.SCAD(1.0, 3.0), 4.0, [4.0, -4.0], [0.0, 0.0]),  # step = a + 1
        (pr.SCAD(1.0, 3.0), 9.0, [6.0, -6.0], [0.0, 0.0]),
        (pr.LogSum(1.0, 1.0), 1.0, [1.0, -1.0], [0.0, 0.0]),
        (pr.Lp(1.0, 0.5), 1.0, [1.5, -1.5], [0.0, 0.0]),
        (pr.OutsideInterval(-1.0, 3.0), 1.0, [1.0], [3.0]),
        (pr.SparseSet(2), 1.0, [1.0, -2.0, -1.0, 2.0, 2.0], [0.0, -2.0, 0.0, 2.0, 0.0]),
    ],
    ids=repr,
)
def test_ties_go_where_the_docstring_says(h: pr.Regularizer, step: float, x: list[float], chosen: list[float]) -> None:
    point = jnp.asarray(x)
    for result in (h.prox(point, step), jax.jit(lambda h, x: h.prox(x, step))(h, point)):
        np.testing.assert_array_equal(result, chosen)


def test_rank_tie_is_deterministic() -> None:
    first = pr.RankBall(1).prox(jnp.asarray(MATRIX), 1.0)
    np.testing.assert_array_equal(first, pr.RankBall(1).prox(jnp.asarray(MATRIX), 1.0))
    np.testing.assert_allclose(jnp.linalg.norm(first), 2.0)


def test_negative_capped_l1_leaves_zero() -> None:
    assert float(pr.NegativeCappedL1(1e-4, 20.0).prox(jnp.zeros(()), 0.5)) == 0.5e-4


# --- dualities, with the two sides coded independently --------------------------------------------------------------


@pytest.mark.parametrize(
    ("h", "project", "shape"),
    [
        (pr.L1(0.7), lambda v: np.clip(v, -0.7, 0.7), (6,)),
        (pr.L1(0.7), lambda v: pr.LInfBall(0.7).prox(jnp.asarray(v), 1.0), (6,)),
        (pr.L1Ball(0.7).conjugate(), lambda v: ref.project_l1(v, 0.7), (6,)),
        (pr.L2(0.7), lambda v: ref.project_l2(v, 0.7), (6,)),
        (pr.L2(0.7), lambda v: pr.L2Ball(0.7).prox(jnp.asarray(v), 1.0), (6,)),
        (pr.Nuclear(0.7), lambda v: ref.project_spectral(v, 0.7), (4, 3)),
        (pr.SquaredL2(0.7).conjugate().conjugate(), None, (6,)),
    ],
    ids=["l1", "l1-linf ball", "l1 ball", "l2", "l2-l2 ball", "nuclear", "twice"],
)
@pytest.mark.parametrize("step", [0.1, 1.0, 5.0])
def test_moreau_decomposition(h: pr.Regularizer, project: Any, shape: tuple[int, ...], step: float) -> None:
    """prox_{t h}(x) + t P(x / t) = x, where h is the support function of the set that P projects on."""
    x = 3 * np.random.default_rng(0).normal(size=shape)
    dual = np.asarray(project(x / step)) if project else x / (step + 1 / 0.7)
    np.testing.assert_allclose(np.asarray(h.prox(jnp.asarray(x), step)) + step * dual, x, rtol=0, atol=1e-7)


@pytest.mark.parametrize("step", [0.1, 1.0, 5.0])
def test_the_conjugate_of_the_simplex_is_the_maximum(step: float) -> None:
    x = 3 * np.random.default_rng(0).normal(size=8)
    conjugate = pr.Simplex(0.5).conjugate()
    np.testing.assert_allclose(conjugate.prox(jnp.asarray(x), step), ref.prox_max(x, 0.5 * step), atol=1e-12)
    np.testing.assert_allclose(conjugate.value(jnp.asarray(x)), 0.5 * x.max())


@pytest.mark.parametrize("row", [row for row in REGULARIZERS if row.convex], ids=lambda row: row.name)
def test_fenchel_young(row: Row) -> None:
    """h(u) + h*(v) >= <u, v>, with equality for u = prox_h(x), v = x - u: a check of every conjugate value."""
    for seed in range(5):
        example = usual_example(row, seed, step=1.0)
        h = row.make(**example.parameters)
        u = prox(row, example)
        v = example.x - u
        equal = h.value(jnp.asarray(u)) + h.conjugate_value(jnp.asarray(v))
        np.testing.assert_allclose(equal, (u * v).sum(), atol=1e-9)
        w = competitors(row, example)[seed]
        assert row.reference(w, **example.parameters) + h.conjugate_value(jnp.asarray(v)) >= (w * v).sum() - 1e-9
        outside = h.conjugate_value(jnp.asarray(1e3 * (1 + np.abs(example.x))))
        assert outside > 10
        np.testing.assert_allclose(h.conjugate().conjugate().value(jnp.asarray(u)), h.value(jnp.asarray(u)))


def test_conjugates_of_composites() -> None:
    """The conjugation rules of the calculus, at points where everything is finite, against the definition on a grid."""
    grid = np.linspace(-50, 50, 200_001)
    v = np.array([0.3, -0.8])
    h = pr.ElasticNet(1.5, 0.4)
    terms = ref.elastic_net(grid, 1.5, 0.4)
    cases = [
        (2.0 * h, 2 * terms),
        (h.shift(jnp.asarray([0.5, 0.5])), ref.elastic_net(grid - 0.5, 1.5, 0.4)),
        (pr.MoreauEnvelope(pr.SquaredL2(2.0), 0.5), grid**2 / 2),
        (pr.Separable([h, h]), terms),
    ]
    for composite, values in cases:
        x: Any = [jnp.asarray(entry) for entry in v] if isinstance(composite, pr.Separable) else jnp.asarray(v)
        want = sum((grid * entry - values).max() for entry in v)
        np.testing.assert_allclose(composite.conjugate_value(x), want, atol=1e-6)


# --- calculus -------------------------------------------------------------------------------------------------------


def halves(x: Any) -> dict[str, Any]:
    """x as a pytree of two leaves."""
    return {"first": x[: len(x) // 3], "rest": (x[len(x) // 3 :],)}


@every_row
def test_calculus_laws(row: Row) -> None:
    def laws(parameters: Any, x: Any, step: Any, factor: Any, offset: Any) -> list[tuple[Any, Any]]:
        h = row.make(**parameters)
        both = pr.Separable({"plain": h, "nested": [factor * h, pr.Zero()]})
        tree = {"plain": x, "nested": [offset, {"free": x}]}
        pairs = [
            ((factor * h).prox(x, step), h.prox(x, factor * step)),
            ((factor * h).value(x), factor * h.value(x)),
            (h.shift(offset).prox(x, step), offset + h.prox(x - offset, step)),
            (h.shift(offset).value(x), h.value(x - offset)),
            (
                both.prox(tree, step),
                {"plain": h.prox(x, step), "nested": [h.prox(offset, factor * step), {"free": x}]},
            ),
            (both.value(tree), h.value(x) + factor * h.value(offset)),
            (pr.MoreauEnvelope(h, factor).value(x), h.envelope(x, factor)),
            (pr.MoreauEnvelope(h, factor).prox(x, step), x + step / (step + factor) * (h.prox(x, step + factor) - x)),
        ]
        if row.splits:
            pairs += [(h.prox(halves(x), step), halves(h.prox(x, step))), (h.value(halves(x)), h.value(x))]
        return pairs

    run = jax.jit(laws)
    for seed in range(3):
        example = usual_example(row, seed)
        offset = 0.5 * np.random.default_rng(seed + 100).normal(size=row.shape)
        for got, want in run(example.parameters, example.x, example.step, 1.7, offset):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, want)


@pytest.mark.parametrize(
    ("row", "symmetry"),
    [pytest.param(row, s, id=f"{row.name}-{s}") for row in REGULARIZERS for s in row.symmetries],
)
def test_symmetries(row: Row, symmetry: str) -> None:
    def act(x: Any) -> Any:
        if symmetry == "sign":
            return -x
        if symmetry == "permutation":
            return np.roll(x, 3, axis=0)
        left = np.linalg.qr(np.random.default_rng(7).normal(size=(len(x), len(x))))[0]
        return left @ x

    for seed in range(3):
        example = usual_example(row, seed)
        np.testing.assert_allclose(prox(row, example, act(example.x)), act(prox(row, example)), rtol=0, atol=1e-9)


def test_envelope_of_a_function_that_is_not_convex_is_minimised_globally() -> None:
    """prox of the envelope of -cap l1, against a grid over both variables of the joint problem."""
    h, mu, t = pr.NegativeCappedL1(1.0, 1.5), 0.7, 2.0
    x = np.linspace(-3, 3, 13) + 0.01
    u, v = np.linspace(-6, 6, 1201)[:, None], np.linspace(-6, 6, 1201)
    envelope = (-ref.capped(v, 1.0, 1.5) + (u - v) ** 2 / (2 * mu)).min(axis=1)
    least, _ = ref.minimum(lambda w: np.interp(w, u[:, 0], envelope), x, t, [1.5])
    p = np.asarray(pr.MoreauEnvelope(h, mu).prox(jnp.asarray(x), t))
    reached = [float(h.envelope(jnp.asarray(a), mu)) + (a - b) ** 2 / (2 * t) for a, b in zip(p, x, strict=True)]
    assert (np.asarray(reached) <= least + 1e-6).all()


@every_row
def test_declares_what_it_is(row: Row) -> None:
    h = row.make(**usual_example(row).parameters)
    assert (h.convex, h.separable) == (row.convex, row.separable)
    for composite in (2.0 * h, h.shift(0.0), pr.MoreauEnvelope(h, 1.0), pr.Separable([h, pr.L1(1.0)])):
        assert (composite.convex, composite.separable) == (row.convex, row.separable)
    if row.convex:
        assert h.conjugate().convex
        assert h.conjugate().separable == row.separable
    else:
        with pytest.raises(TypeError, match="not convex"):
            h.conjugate()
    assert not pr.Separable([pr.L0(1.0), pr.Zero()]).convex


# --- small spaces searched exhaustively -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("h", "value"),
    [
        (pr.L2(1.3), lambda u: 1.3 * np.linalg.norm(u, axis=-1)),
        (pr.GroupL2(1.3), lambda u: 1.3 * np.linalg.norm(u, axis=-1)),
        (pr.L1Ball(1.5), lambda u: np.where(np.abs(u).sum(axis=-1) <= 1.5, 0, np.inf)),
        (pr.L2Ball(1.5), lambda u: np.where(np.linalg.norm(u, axis=-1) <= 1.5, 0, np.inf)),
        (pr.Halfspace(jnp.asarray([1.0, 2.0]), 0.5), lambda u: np.where(u @ [1.0, 2.0] <= 0.5, 0, np.inf)),
        (pr.SparseSet(1), lambda u: np.where((u != 0).sum(axis=-1) <= 1, 0, np.inf)),
    ],
    ids=["l2", "group", "l1 ball", "l2 ball", "halfspace", "sparse"],
)
def test_minimises_over_a_grid_in_the_plane(h: pr.Regularizer, value: Callable[[Any], Any]) -> None:
    axis = np.linspace(-4, 4, 401)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    known = value(grid)
    envelope = jax.jit(lambda x, step: h.envelope(x, step))
    for x in 2 * np.random.default_rng(0).normal(size=(20, 2)):
        for step in (0.1, 1.0, 10.0):
            least = (known + ((grid - x) ** 2).sum(axis=-1) / (2 * step)).min()
            assert envelope(x, step) <= least + 1e-12


# --- JAX ------------------------------------------------------------------------------------------------------------


@every_row
def test_compiled_is_eager_and_batched_is_looped(row: Row) -> None:
    run = compiled(row.make)
    runs = [usual_example(row, seed, step=0.3 + 0.5 * seed) for seed in range(4)]
    runs = [replace(e, parameters={k: v * (1 - 0.05 * i) for k, v in e.parameters.items()}) for i, e in enumerate(runs)]
    eager = row.make(**runs[0].parameters)
    np.testing.assert_allclose(eager.prox(jnp.asarray(runs[0].x), runs[0].step), prox(row, runs[0]), atol=1e-12)
    np.testing.assert_allclose(
        eager.value(jnp.asarray(runs[0].x)), run.value(runs[0].parameters, runs[0].x), rtol=1e-12
    )
    batch = {name: jnp.asarray([e.parameters[name] for e in runs]) for name in row.parameters}
    points = jnp.stack([jnp.asarray(e.x) for e in runs])
    together = jax.vmap(run.prox)(batch, points, jnp.asarray([e.step for e in runs]))
    np.testing.assert_allclose(together, np.stack([prox(row, e) for e in runs]), atol=1e-12)


@every_row
def test_keeps_single_precision(row: Row) -> None:
    example = usual_example(row)
    h = row.make(**{name: np.float64(value) for name, value in example.parameters.items()})
    x = jnp.asarray(example.x, jnp.float32)
    p, value = jax.jit(lambda h, x, step: (h.prox(x, step), h.value(h.prox(x, step))))(h, x, np.float64(example.step))
    assert (p.dtype, value.dtype) == (jnp.float32, jnp.float32)
    if row.convex:
        assert h.conjugate_value(x).dtype == jnp.float32
    np.testing.assert_allclose(p, prox(row, example), atol=1e-4)
    np.testing.assert_allclose(
        value, row.reference(np.asarray(p, float), **example.parameters) if not row.indicator else 0, rtol=1e-3
    )


@every_row
def test_changing_a_parameter_recompiles_nothing(row: Row) -> None:
    traces = []

    def run(h: pr.Regularizer, x: Any, step: Any) -> Any:
        traces.append(None)
        return h.prox(x, step)

    run_jit = jax.jit(run)
    example = usual_example(row)
    for factor in (1.0, 0.9, 0.8):
        h = row.make(**{name: factor * value for name, value in example.parameters.items()})
        run_jit(h, jnp.asarray(example.x), factor * example.step)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "row",
    [row for row in REGULARIZERS if "strength" in row.parameters and not {"conjugate", "and"} & set(row.name.split())],
    ids=lambda row: row.name,
)
def test_strength_zero_is_no_regularizer(row: Row) -> None:
    example = usual_example(row)
    example = replace(example, parameters={**example.parameters, "strength": 0.0})
    np.testing.assert_allclose(prox(row, example), example.x, atol=1e-9)


def test_derivatives_are_checked_where_there_are_some() -> None:
    """The points of `usual_example` are smooth, so that `check_derivative` and `check_envelope` are not vacuous."""
    for row in REGULARIZERS:
        example = usual_example(row)
        where, _ = smooth(row, example, lambda h, e=example, r=row: prox(r, e, e.x + h))
        assert where.mean() > 0.8, row.name
        check_derivative(row, example)
        check_envelope(row, example)


@pytest.mark.parametrize("kind", ["spread", "flat", "one above", "far below", "equal"])
def test_simplex_sums_to_its_scale_for_a_million_float32(kind: str) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=1_000_000)
    x = {
        "spread": 10 * noise + 1e4,
        "flat": 1e-6 * noise,
        "one above": np.append(-0.9 + 1e-7 * noise, 0.0),
        "far below": np.append(1e-6 * noise[:500_000], -1e8 * np.ones(500_000)),
        "equal": 0 * noise,
    }[kind]
    x32 = jnp.asarray(x, jnp.float32)
    p, value = jax.jit(lambda x: (pr.Simplex().prox(x, 1.0), pr.Simplex().value(pr.Simplex().prox(x, 1.0))))(x32)
    exact = ref.project_simplex(np.asarray(x32, float), 1.0)
    assert value == 0
    assert abs(np.asarray(p, float).sum() - 1) < 1e-6
    np.testing.assert_allclose(p, exact, atol=1e-5 * exact.max())


def test_norms_do_not_overflow() -> None:
    x = jnp.asarray([3e30, 4e30], jnp.float32)
    for h in (pr.L2(1.0), pr.GroupL2(1.0)):
        np.testing.assert_allclose(h.prox(x, 1.0), x)
    np.testing.assert_allclose(pr.L2Ball(1.0).prox(x, 1.0), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(pr.Hyperplane(x, 0.0).prox(x, 1.0), [0, 0], atol=1e24)


def test_box_bounds_may_be_infinite_or_arrays() -> None:
    box = pr.Box(jnp.asarray([-jnp.inf, 0.0]), jnp.asarray([1.0, jnp.inf]))
    np.testing.assert_array_equal(box.prox(jnp.asarray([-5.0, 5.0]), 1.0), [-5.0, 5.0])
    np.testing.assert_array_equal(box.prox(jnp.asarray([5.0, -5.0]), 1.0), [1.0, 0.0])
    assert box.value(jnp.asarray([-5.0, 5.0])) == 0
    assert box.value(jnp.asarray([5.0, 5.0])) == jnp.inf
    assert box.conjugate_value(jnp.asarray([2.0, 0.0])) == 2.0
    assert box.conjugate_value(jnp.asarray([2.0, 1.0])) == jnp.inf


def test_numbers_of_any_kind_scale_a_regularizer() -> None:
    for factor in (2, 2.0, np.float64(2), np.float32(2), jnp.asarray(2.0)):
        assert isinstance(factor * pr.L1(1.0), pr.Scaled)
        np.testing.assert_allclose((factor * pr.L1(1.0)).value(jnp.ones(3)), 6.0)


# --- errors name the argument ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in REGULARIZERS if row.parameters], ids=lambda row: row.name)
def test_refuses_parameters_that_are_not_finite(row: Row) -> None:
    parameters = usual_example(row).parameters
    for name in {
        "strength",
        "cap",
        "theta",
        "a",
        "epsilon",
        "p",
        "delta",
        "radius",
        "scale",
        "factor",
        "smoothing",
    } & set(parameters):
        for bad in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=f"^{name} must be .*got"):
                row.make(**{**parameters, name: bad})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: pr.L1(-1), ValueError, r"strength must be finite and >= 0, got -1\.0\."),
        (lambda: pr.L1(np.array([1.0, -1.0])), ValueError, "strength must be finite and >= 0"),
        (lambda: pr.L2(-1.0), ValueError, "strength"),
        (lambda: pr.ElasticNet(1.0, 1.5), ValueError, r"l1_ratio must be in \[0, 1\], got 1\.5"),
        (lambda: pr.Huber(1.0, 0.0), ValueError, "delta must be finite and > 0"),
        (lambda: pr.GroupL2(1.0, [0.5, 1.0]), TypeError, "groups must be integer labels"),
        (lambda: pr.GroupL2(1.0, [0, 1]).value(jnp.ones(3)), ValueError, "groups must have the shape of x"),
        (lambda: pr.NegativeCappedL1(1.0, 0.0), ValueError, "cap must be finite and > 0, got 0"),
        (lambda: pr.SCAD(1.0, 2.0), ValueError, "a must be finite and > 2, got 2"),
        (lambda: pr.MCP(1.0, -1.0), ValueError, "theta must be"),
        (lambda: pr.LogSum(1.0, 0.0), ValueError, "epsilon must be"),
        (lambda: pr.Lp(1.0, 1.0), ValueError, r"p must be in \(0, 1\), got 1"),
        (lambda: pr.OutsideInterval(1.0, 1.0), ValueError, "lower must be < upper"),
        (lambda: pr.OutsideInterval(-np.inf, 1.0), ValueError, "lower must be < upper, both finite"),
        (lambda: pr.Box(1.0, 0.0), ValueError, "lower must be <= upper"),
        (lambda: pr.Simplex(0.0), ValueError, "scale must be"),
        (lambda: pr.L1Ball(0.0), ValueError, "radius must be"),
        (lambda: pr.L2Ball(-1.0), ValueError, "radius must be"),
        (lambda: pr.LInfBall(0.0), ValueError, "radius must be"),
        (lambda: pr.Halfspace(np.zeros(3), 1.0), ValueError, "normal must be finite and not zero"),
        (lambda: pr.Hyperplane(np.ones(3), np.nan), ValueError, "offset must be finite"),
        (
            lambda: pr.Halfspace(NORMAL, 1.0).value({"a": jnp.ones(6)}),
            ValueError,
            "normal must have the structure of x",
        ),
        (lambda: pr.SparseSet(0), ValueError, "k must be an integer > 0, got 0"),
        (lambda: pr.SparseSet(1.5), TypeError, r"k must be an integer > 0, got 1\.5"),
        (lambda: pr.RankBall(0), ValueError, "rank must be an integer > 0"),
        (lambda: pr.Nuclear(1.0).value(jnp.ones(3)), ValueError, r"must be a matrix, got shape \(3,\)"),
        (lambda: pr.PSD().prox(jnp.ones((2, 3)), 1.0), ValueError, r"square matrix, got shape \(2, 3\)"),
        (lambda: 0.0 * pr.L1(1.0), ValueError, "factor must be finite and > 0"),
        (lambda: pr.MoreauEnvelope(pr.L0(1.0), 0.0), ValueError, "smoothing must be"),
        (lambda: pr.Conjugate(pr.L0(1.0)), TypeError, "L0 is not convex"),
        (lambda: pr.Conjugate(2.0 * pr.MCP(1.0, 2.0)), TypeError, "Scaled is not convex"),
        (lambda: pr.L0(1.0).conjugate_value(jnp.ones(2)), TypeError, "L0 has no closed form"),
        (lambda: pr.SparseSet(1).conjugate_value(jnp.ones(2)), TypeError, "SparseSet has no closed form"),
        (lambda: pr.L1(1.0).shift({"a": 1.0}).value(jnp.ones(2)), ValueError, "offset must have the structure of x"),
        (lambda: pr.Separable({"w": 0.1}), TypeError, r"parts\['w'\] must be a regularizer, got 0\.1"),
        (lambda: pr.L1(jnp.ones((2, 3))).prox(jnp.ones(3), 1.0), ValueError, r"shape \(2, 3\) does not broadcast"),
    ],
)
def test_errors_name_the_argument(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_separable_names_the_entries_that_differ() -> None:
    h = pr.Separable({"w": pr.L1(0.1), "b": pr.Zero()})
    with pytest.raises(ValueError, match=r"x\['c'\]\['d'\] has no regularizer; x has no entry \['b'\]"):
        h.value({"w": jnp.ones(2), "c": {"d": jnp.ones(1)}})
    with pytest.raises(ValueError, match="kinds of their containers differ"):
        pr.Separable([pr.L1(0.1)]).prox((jnp.ones(2),), 1.0)


def test_rows_cover_every_class() -> None:
    classes = {value for value in vars(pr).values() if isinstance(value, type) and issubclass(value, pr.Regularizer)}
    made = {type(row.make(**usual_example(row).parameters)) for row in REGULARIZERS}
    abstract = {pr.Regularizer, pr.Leafwise, pr.Elementwise, pr.Penalty}
    assert classes - made == abstract | {
        pr.Separable
    }  # Separable has no row: test_calculus_laws runs it on every other
    assert all(row.convex for row in CONVEX)
