"""`proxbi.glm`: its oracles are those of automatic differentiation, in every layout; and its callers use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from jax.experimental.sparse import BCOO
from jax.extend.core import ClosedJaxpr, Jaxpr

from proxbi import Box, Problem, _compile, minimize, paper_solver, run
from proxbi.cleaning import hyper_cleaning
from proxbi.datasets import Labelled
from proxbi.glm import Linear, LinearModel, Logistic, Loss, Softmax, design, linear_model
from proxbi.glm.layouts import _MOST_BLOCK, _block, _whole_vectors

CLOSE = {"float32": 1e-5, "float64": 1e-10}


# --- equal to automatic differentiation -------------------------------------------------------------------------------


PLAIN_LOSS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda z, t: optax.softmax_cross_entropy_with_integer_labels(z, t),
    "logistic": lambda z, t: jnp.sum(optax.sigmoid_binary_cross_entropy(z, t), axis=1),
    "squared": lambda z, t: jnp.sum((z - t) ** 2, axis=1) / 2,
}


class Form(NamedTuple):
    """What is compiled: hypothesis draws the numbers."""

    loss: str
    rows: int
    shape: tuple[int, ...]
    bias: bool
    ridge: str

    @property
    def outputs(self) -> int:
        return 1 if len(self.shape) == 1 else self.shape[0]


FORMS = [
    Form("softmax", 30, (10, 7), False, "all"),
    Form("softmax", 1, (1, 3), True, "each feature"),
    Form("softmax", 17, (3, 5), True, "each class"),
    Form("logistic", 25, (6,), True, "each feature"),
    Form("logistic", 1, (9, 4), False, "each class"),
    Form("squared", 25, (6,), False, "each feature"),
    Form("squared", 1, (2, 3), True, "all"),
]


def weights(x: Any) -> Any:
    return jax.nn.sigmoid(x["rows"])


@cache
def ridge(form: Form) -> Callable[[Any], Any]:
    penalties: dict[str, Callable[[Any], Any]] = {
        "all": lambda x: jnp.exp(x["ridge"][0]),
        "each feature": lambda x: jnp.exp(x["ridge"][: form.shape[-1]]),
        "each class": lambda x: jnp.exp(x["ridge"][: form.outputs, None]),
    }
    return penalties[form.ridge]


@cache
def written(form: Form) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """f and g as a user would write them."""

    def fit(y: Any, part: dict[str, Any], of_rows: Any) -> Any:
        scores = part["Z"] @ (y.weights if form.bias else y).reshape(form.outputs, -1).T
        scores = scores + jnp.reshape(y.bias, (1, -1)) if form.bias else scores
        return jnp.mean(of_rows * PLAIN_LOSS[form.loss](scores, part["t"]))

    def lower(x: Any, y: Any, data: Any) -> Any:
        squares, r = jax.tree.map(jnp.square, y), ridge(form)(x)
        of_weights = squares.weights if form.bias else squares
        penalty = jnp.sum(jnp.broadcast_to(r, of_weights.shape) * of_weights)
        penalty = penalty + jnp.sum(r * squares.bias) if form.bias and form.ridge == "all" else penalty
        return fit(y, data["train"], weights(x)) + penalty / 2

    return lambda x, y, data: fit(y, data["held_out"], 1.0), lower


class Drawn(NamedTuple):
    """A problem, the same one as autodiff sees it, a point and a direction."""

    ours: LinearModel
    plain: Problem
    x: Any
    y: Any
    v: Any


def drawn(form: Form, seed: int, dtype: str) -> Drawn:
    """Weights all alike, of all sizes, nearly 0 and 1, or exactly 0 and 1; scores that are small or saturated."""
    draw = np.random.default_rng(seed)
    array = partial(jnp.asarray, dtype=dtype)

    def part(count: int) -> dict[str, Any]:
        targets = {
            "softmax": jnp.asarray(draw.integers(0, form.outputs, count)),
            "logistic": array(draw.integers(0, 2, (count, form.outputs))),
            "squared": array(draw.normal(size=(count, form.outputs))),
        }
        return {"Z": array(draw.normal(size=(count, form.shape[-1]))), "t": targets[form.loss]}

    def point(scale: float) -> Any:
        matrix = array(scale * draw.normal(size=form.shape))
        return Linear(matrix, array(scale * draw.normal(size=form.shape[:-1]))) if form.bias else matrix

    data = {"train": part(form.rows), "held_out": part(4)}
    x = {
        "rows": array(draw.choice([0.0, 1.0, 20.0, 2000.0]) * draw.normal(size=form.rows)),
        "ridge": array(draw.normal(size=10)),
    }
    train, held_out = ((rows["Z"], rows["t"]) for rows in data.values())
    ours = linear_model(train, held_out, form.loss, weights=weights, ridge=ridge(form), regularizer=Box(-1.0, 1.0))
    return Drawn(
        ours,
        Problem(*written(form), Box(-1.0, 1.0), data),
        x,
        point(float(draw.choice([0.0, 0.3, 30.0]))),
        point(1.0),
    )


@_compile.jit
def oracles(problem: Problem, x: Any, y: Any, v: Any) -> dict[str, Any]:
    return {
        "value_upper": problem.value_upper(x, y),
        "value_lower": problem.value_lower(x, y),
        "grad_upper": problem.grad_upper(x, y),
        "grad_lower": problem.grad_lower(x, y),
        "grad_lower_x": problem.grad_lower_x(x, y),
        "hvp": problem.hvp(x, y)(v),
        "cross": problem.cross(x, y)(v),
    }


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest entry of all leaves together."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    largest = max(float(np.abs(np.asarray(b)).max()) for _, b in pairs)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs) / (largest or 1.0)


@pytest.mark.parametrize(
    ("form", "dtype"), [*((form, "float64") for form in FORMS), *((FORMS[k], "float32") for k in (0, 3, 5))], ids=str
)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_oracles_are_those_of_autodiff(form: Form, dtype: str, seed: int) -> None:
    case = drawn(form, seed, dtype)
    ours, theirs = (oracles(problem, case.x, case.y, case.v) for problem in (case.ours, case.plain))
    for name, value in theirs.items():
        assert jax.tree.structure(ours[name]) == jax.tree.structure(value)
        assert [a.dtype for a in jax.tree.leaves(ours[name])] == [b.dtype for b in jax.tree.leaves(value)]
        assert apart(ours[name], value) <= CLOSE[dtype], name


def test_a_loss_of_ones_own_needs_its_value_only() -> None:
    class Own(Loss):
        def value(self, scores: Any, targets: Any) -> Any:
            return Logistic().value(scores, targets)

    case = drawn(FORMS[3], 0, "float64")
    own = replace(case.ours, lower=replace(case.ours.lower, loss=Own()))
    found, known = (oracles(problem, case.x, case.y, case.v) for problem in (own, case.ours))
    assert apart(found, known) <= 1e-12


def test_any_upper_level_goes_with_the_lower_one() -> None:
    case = drawn(FORMS[0], 0, "float64")
    mixed = LinearModel(lambda x, y: jnp.sum(y**2) + jnp.sum(x["rows"]), case.ours.lower, data=case.ours.data)
    of_x, of_y = mixed.grad_upper(case.x, case.y)
    np.testing.assert_allclose(of_x["rows"], 1)
    np.testing.assert_allclose(of_y, 2 * case.y)


# --- products with X --------------------------------------------------------------------------------------------------


def sparse(matrix: Any, **options: Any) -> Any:
    return design(BCOO.fromdense(matrix), **options)


LAYOUTS = {
    "rows": partial(design, layout="rows"),
    "both": partial(design, layout="both"),
    "blocks": partial(design, layout="blocks"),
    "sparse": sparse,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "dtype", "outputs"),
    [
        ("rows", "float64", 10),
        ("both", "float64", 1),
        ("both", "float32", 10),
        ("blocks", "float64", 10),
        ("sparse", "float64", 10),
        ("rows", "bfloat16", 3),
        ("both", "bfloat16", 10),
        ("blocks", "bfloat16", 10),
    ],
)
def test_products_are_the_same_in_every_layout(layout: str, dtype: str, outputs: int) -> None:
    """X stored as bfloat16 is rounded, and nothing else is: products are right to float32."""
    draw, kept = np.random.default_rng(0), "float32" if dtype == "bfloat16" else dtype
    dense = jnp.asarray(draw.normal(size=(4_001 if layout == "blocks" else 33, 5)), kept).at[:, 1].set(0)
    made = LAYOUTS[layout](dense, dtype=dtype)
    exact = np.asarray(dense.astype(dtype), "float64")
    w, r = draw.normal(size=(outputs, 5)), draw.normal(size=(len(dense), outputs))
    for found, expected in (
        (made.scores(jnp.asarray(w, kept)), exact @ np.asarray(w, kept).T),
        (made.sums(jnp.asarray(r, kept)), np.asarray(r, kept).T @ exact),
    ):
        assert found.dtype == kept
        assert apart(found, expected) <= CLOSE[kept]


def test_blocks_are_padded_only_where_they_must_be() -> None:
    assert _block(2_000_000) == _MOST_BLOCK
    assert _block(30_011) == _MOST_BLOCK  # a prime
    assert _block(7) == 7
    assert design(jnp.ones((30_011, 1)), layout="blocks").matrix.shape == (8 * _MOST_BLOCK, 1)


def test_outputs_are_filled_up_to_whole_vectors() -> None:
    assert [_whole_vectors(k, jnp.float32) for k in (1, 4, 5, 8, 10, 16)] == [1, 4, 8, 8, 16, 16]
    assert [_whole_vectors(k, jnp.float64) for k in (1, 2, 3, 10)] == [1, 2, 4, 12]


def test_a_sparse_matrix_is_never_made_dense() -> None:
    """No array of a product has as many entries as X."""
    rows, features = 500, 400
    places = np.stack([np.arange(rows), np.random.default_rng(0).integers(0, features, rows)], axis=1)
    matrix = BCOO((jnp.ones(rows), jnp.asarray(places)), shape=(rows, features))
    labels = np.arange(rows) % 2
    problem = linear_model((matrix, labels), (matrix, labels), "softmax", weights=jax.nn.sigmoid, ridge=0.1)
    x, y = jnp.zeros(rows), jnp.zeros((2, features))
    program = jax.make_jaxpr(lambda v: (problem.hvp(x, y)(v), problem.cross(x, y)(v), problem.grad_lower(x, y)))(y)
    assert max(sizes(program.jaxpr)) < rows * features / 10
    dense = linear_model(
        (matrix.todense(), labels), (matrix.todense(), labels), "softmax", weights=jax.nn.sigmoid, ridge=0.1
    )
    assert max(sizes(jax.make_jaxpr(lambda v: dense.hvp(x, y)(v))(y).jaxpr, inputs=True)) >= rows * features
    v = jnp.asarray(np.random.default_rng(1).normal(size=y.shape))
    np.testing.assert_allclose(problem.hvp(x, y)(v), dense.hvp(x, y)(v), atol=1e-14)


def jaxprs_in(parameters: dict[str, Any]) -> list[Jaxpr]:
    """The programs inside of an equation. (JAX has such a function in its newer versions only.)"""
    values = [value if isinstance(value, tuple) else (value,) for value in parameters.values()]
    found = [each.jaxpr if isinstance(each, ClosedJaxpr) else each for value in values for each in value]
    return [each for each in found if isinstance(each, Jaxpr)]


def sizes(jaxpr: Any, inputs: bool = False) -> list[int]:
    """Of all arrays that a program makes (and takes)."""
    variables = [v for equation in jaxpr.eqns for v in (equation.invars if inputs else equation.outvars)]
    inner = [sub for equation in jaxpr.eqns for sub in jaxprs_in(equation.params)]
    return [v.aval.size for v in variables] + [size for sub in inner for size in sizes(sub, inputs)]


def products(program: Any) -> int:
    """Passes over X: products of matrices in a program, those in loops counted once."""
    inner = [sub for equation in program.eqns for sub in jaxprs_in(equation.params)]
    return sum(e.primitive.name == "dot_general" for e in program.eqns) + sum(products(sub) for sub in inner)


def test_what_belongs_to_the_point_is_computed_once_for_all_directions() -> None:
    case = drawn(FORMS[0], 0, "float64")
    x, y, v = case.x, case.y, case.v
    at_point, hvp = jax.make_jaxpr(lambda: case.ours.hvp(x, y)(v)), case.ours.hvp(x, y)
    assert products(at_point().jaxpr) == 3  # the scores at y; those of v, and the sums
    assert products(jax.make_jaxpr(hvp)(v).jaxpr) == 2
    assert products(jax.make_jaxpr(case.ours.cross(x, y))(v).jaxpr) == 1
    assert products(jax.make_jaxpr(lambda: case.ours.grad_lower(x, y))().jaxpr) == 2


def test_many_models_at_once_are_one_by_one() -> None:
    case = drawn(FORMS[0], 0, "float64")
    ys = jnp.stack([case.y, case.y + 1, case.v])
    together = jax.vmap(lambda y: case.ours.hvp(case.x, y)(case.v))(ys)
    one_by_one = jnp.stack([case.ours.hvp(case.x, y)(case.v) for y in ys])
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12, atol=1e-14)


# --- the preconditioner -----------------------------------------------------------------------------------------------


def stretched(loss: Any, seed: int = 0, **options: Any) -> tuple[LinearModel, Any]:
    """Features whose scales differ by a factor of a thousand, and a direction."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(40, 8)) * np.geomspace(1e-1, 1e2, 8) @ np.linalg.qr(draw.normal(size=(8, 8)))[0]
    targets = draw.integers(0, 2, 40) if loss == "softmax" else draw.normal(size=40)
    part = features, targets
    return linear_model(part, part, loss, **{"preconditioned": True} | options), jnp.asarray(draw.normal(size=(2, 8)))


def test_the_preconditioner_inverts_where_all_rows_are_alike() -> None:
    problem, r = stretched("squared", ridge=lambda x: x[0])
    x, y = jnp.array([0.3]), Linear(r[0], jnp.asarray(0.0))
    direction = Linear(r[1], jnp.asarray(0.0))
    precondition = problem.preconditioner(x, y)
    assert precondition is not None
    back = problem.hvp(x, y)(Linear(precondition(direction).weights, jnp.asarray(0.0)))
    np.testing.assert_allclose(back.weights, direction.weights, rtol=1e-9)


def test_the_preconditioner_makes_a_wide_spectrum_narrow() -> None:
    """Of softmax with weights of all sizes: symmetric, positive definite, and the condition number falls."""
    problem, y = stretched("softmax", weights=jax.nn.sigmoid, ridge=1e-3)
    x, units = jnp.linspace(-2.0, 2.0, 40), jnp.eye(16).reshape(16, 2, 8)
    precondition = problem.preconditioner(x, y / 100)
    assert precondition is not None
    hessian, inverse = (jax.vmap(f)(units).reshape(16, 16) for f in (problem.hvp(x, y / 100), precondition))
    np.testing.assert_allclose(inverse, inverse.T, rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(inverse).min() > 0
    root = np.linalg.cholesky(np.asarray(inverse))
    assert np.linalg.cond(root.T @ np.asarray(hessian) @ root) < np.linalg.cond(hessian) / 100


def test_there_is_no_preconditioner_where_it_would_not_fit() -> None:
    x, y = jnp.ones(8), jnp.zeros((1, 8))
    for options in ({"ridge": jnp.exp}, {"ridge": Linear(0.1, 0.0)}, {"ridge": 0.1, "preconditioned": False}):
        problem, _ = stretched("squared", **options)
        assert problem.preconditioner(x, y) is None
    matrix, t = BCOO.fromdense(jnp.eye(3)), np.arange(3)
    assert linear_model((matrix, t), (matrix, t), "softmax", preconditioned=True).spectrum is None


def test_a_preconditioner_of_nothing_is_finite() -> None:
    problem, r = stretched("squared", weights=0.0)
    precondition = problem.preconditioner(jnp.zeros(1), r)
    assert precondition is not None
    np.testing.assert_allclose(precondition(r), r, rtol=1e-9)


def test_the_total_curvature_of_softmax_is_that_of_every_loss() -> None:
    draw = np.random.default_rng(0)
    scores, weights = jnp.asarray(draw.normal(size=(4, 3))), jnp.asarray(draw.uniform(size=4))
    ways = Softmax.total_curvature, Loss.total_curvature
    found, known = (total(Softmax(), scores, jnp.arange(4) % 3, weights) for total in ways)
    np.testing.assert_allclose(found, known, atol=1e-15)


# --- its callers ------------------------------------------------------------------------------------------------------


def cleaning(rows: int = 60) -> tuple[Labelled, Labelled]:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(2 * rows, 5))
    labels = np.argmax(features[:, :3], axis=1)
    train = Labelled(features[:rows], np.where(np.arange(rows) % 5 == 0, (labels[:rows] + 1) % 3, labels[:rows]))
    return train, Labelled(features[rows:], labels[rows:])


def plain_cleaning(train: Labelled, trusted: Labelled) -> Problem:
    """The formulas of the paper, for autodiff."""

    def upper(x: Any, y: Any, data: Any) -> Any:
        z, t = data["trusted"]
        return jnp.mean(PLAIN_LOSS["softmax"](z @ y.T, t))

    def lower(x: Any, y: Any, data: Any) -> Any:
        z, t = data["train"]
        return jnp.mean(jax.nn.sigmoid(x) * PLAIN_LOSS["softmax"](z @ y.T, t)) + 1e-2 * jnp.sum(y**2)

    return Problem(upper, lower, Box(-4.0, 4.0), {"train": tuple(train), "trusted": tuple(trusted)})


def test_hyper_cleaning_has_the_iterates_of_the_papers_formulas() -> None:
    train, trusted = cleaning()
    solver = paper_solver("proximal BiO-AIDm", alpha=0.5, beta=5.0, T=3, eta=0.5, cg_steps=4, cg_tol=0.0)
    start = jnp.zeros(60), jnp.zeros((3, 5))
    ours, theirs = (
        run(problem, solver, *start, steps=5)[0]
        for problem in (hyper_cleaning(train, trusted, 1e-2, Box(-4.0, 4.0)), plain_cleaning(train, trusted))
    )
    np.testing.assert_allclose(ours.x, theirs.x, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.y, theirs.y, rtol=1e-9, atol=1e-9)
    assert float(jnp.abs(ours.x).max()) > 1e-2


Z, T = np.ones((3, 2)), np.array([0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (((Z, T), (Z, T), "hinge"), {}, "loss must be one of softmax, logistic, squared, or a Loss, got 'hinge'"),
        (((Z, T[:2]), (Z, T), "softmax"), {}, "train has 3 rows of features, but 2 targets"),
        (((Z, T), (Z, T * 0.5), "softmax"), {}, "held_out: targets must be classes 0, 1, ... for softmax, got float"),
        (((Z, -T), (Z, T), "softmax"), {}, "train: targets must be classes 0, 1, ..., got -1"),
        (((Z[0], T), (Z, T), "softmax"), {}, r"matrix must be rows by features, and not empty; it has shape \(2,\)"),
        (((Z, T), (Z, T), "softmax"), {"layout": "columns"}, 'layout must be "rows", "both" or "blocks"'),
        (((BCOO.fromdense(jnp.ones((3, 2))), T), (Z, T), "softmax"), {"layout": "both"}, "layout must not be given"),
    ],
)
def test_bad_arguments_are_named(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        linear_model(*arguments, **options)


@pytest.mark.parametrize("y0", [jnp.zeros((2, 2)), Linear(jnp.zeros((2, 2)), jnp.zeros(2))], ids=["W", "W, b"])
@pytest.mark.parametrize("wrong", ["train", "held_out"])
def test_classes_that_y_does_not_have_are_named(y0: Any, wrong: str) -> None:
    """They would count as no class at all, without a word."""
    parts = {"train": (Z, T), "held_out": (Z, T)} | {wrong: (Z, np.array([0, 2, 1]))}
    problem = linear_model(**parts, loss="softmax", weights=jax.nn.sigmoid, ridge=0.1)
    with pytest.raises(ValueError, match=rf"{wrong}: targets must be classes 0\.\.1, as y0 has 2 rows, got 2 in row 1"):
        minimize(problem, jnp.zeros(3), y0)


def test_targets_that_jax_would_wrap_around_are_refused() -> None:
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="train: targets must be at most 2,147,483,647, got 4,29"),
    ):
        linear_model((Z, np.array([0, 2**32, 1])), (Z, T), "softmax")


def test_softmax_is_stable_for_scores_of_any_size() -> None:
    scores, targets = jnp.array([[1e30, -1e30, 0.0], [1e4, 1e4, 0.0]]), jnp.array([1, 0])
    loss = Softmax()
    for found in (loss.value(scores, targets), loss.slope(scores, targets), loss.curvature(scores, targets)(scores)):
        assert bool(jnp.all(jnp.isfinite(found)))
