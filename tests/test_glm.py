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

from proxbi import Box, Problem, Status, _compile, minimize
from proxbi.cleaning import hyper_cleaning
from proxbi.datasets import Labelled
from proxbi.glm import Linear, LinearModel, Logistic, Loss, Softmax, design, linear_model
from proxbi.glm.layouts import _MOST_BLOCK, _block, _whole_vectors
from proxbi.solvers import paper_solver

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
        scores = scores + y.bias if form.bias else scores
        return jnp.mean(of_rows * PLAIN_LOSS[form.loss](scores, part["t"]))

    def lower(x: Any, y: Any, data: Any) -> Any:
        squares, r = jax.tree.map(jnp.square, y), ridge(form)(x)
        penalty = jnp.sum(r * (squares.weights if form.bias else squares))
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


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("form", FORMS, ids=str)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_oracles_are_those_of_autodiff(form: Form, dtype: str, seed: int) -> None:
    case = drawn(form, seed, dtype)
    ours, theirs = (oracles(problem, case.x, case.y, case.v) for problem in (case.ours, case.plain))
    for name, value in theirs.items():
        assert jax.tree.structure(ours[name]) == jax.tree.structure(value)
        assert [a.dtype for a in jax.tree.leaves(ours[name])] == [b.dtype for b in jax.tree.leaves(value)]
        assert apart(ours[name], value) <= CLOSE[dtype], name
