"""What is chosen for a fit to a table of data: penalties, weights of sources, weights of rows."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi import analytic, datasets
from proxbi._tree import Scalar
from proxbi.cleaning.problem import hyper_cleaning
from proxbi.problem import Problem
from proxbi.regularizers import Box, Simplex
from suite.case import Case, Data, numerical_case


# One penalty e^{x_i} for each weight of a logistic regression whose features differ in scale by a factor 10.
def logistic(rows: int = 200, features: int = 20) -> Case:
    draw = np.random.default_rng(0)
    truth = np.where(np.arange(features) < features // 3, 1.5 * draw.normal(size=features), 0.0)
    design = draw.normal(size=(2 * rows, features)) * np.geomspace(0.3, 3, features)
    labels = np.where(draw.uniform(size=2 * rows) < 1 / (1 + np.exp(-design @ truth)), 1.0, -1.0)
    data = {
        "Z": jnp.asarray(design[:rows]),
        "t": jnp.asarray(labels[:rows]),
        "Z_held_out": jnp.asarray(design[rows:]),
        "t_held_out": jnp.asarray(labels[rows:]),
    }
    problem = Problem(_logistic_upper, _logistic_lower, Box(-8.0, 2.0), data)
    return numerical_case("box", problem, jnp.full(features, -3.0), jnp.zeros(features))


def _logistic_upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(jnp.logaddexp(0.0, -data["t_held_out"] * (data["Z_held_out"] @ y)))


def _logistic_lower(x: Array, y: Array, data: Data) -> Scalar:
    loss = jnp.mean(jnp.logaddexp(0.0, -data["t"] * (data["Z"] @ y)))
    return loss + 0.5 * jnp.sum(jnp.exp(x) * y**2)


# How much to trust each of several sources of data, the later ones noisier and the last one wrong: weights on a
# simplex.
def sources(sources: int = 6, rows: int = 30, features: int = 10) -> Case:
    draw = np.random.default_rng(0)
    truth, design = draw.normal(size=features), draw.normal(size=(sources, rows, features))
    noise = np.linspace(0.1, 2, sources)[:, None] * draw.normal(size=(sources, rows))
    target = design @ truth + noise
    target[-1] += 3 * design[-1, :, 0]
    held_out = draw.normal(size=(rows, features))
    unseen = held_out @ truth + 0.1 * draw.normal(size=rows)
    data = {"Z": design, "t": target, "Z_held_out": held_out, "t_held_out": unseen}
    problem = Problem(_sources_upper, _sources_lower, Simplex(), jax.tree.map(jnp.asarray, data))
    return numerical_case("simplex", problem, jnp.full(sources, 1 / sources), jnp.zeros(features))


def _sources_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((data["Z_held_out"] @ y - data["t_held_out"]) ** 2)


def _sources_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum(x * jnp.mean((data["Z"] @ y - data["t"]) ** 2, axis=1)) + 0.005 * jnp.sum(y**2)


# One number to choose: the logarithm of one penalty for all weights.
def scalar() -> Case:
    made = analytic.ridge_hyperparameters(100.0)
    problem = Problem(made.problem.upper, _scalar_lower, Box(-8.0, 2.0), made.problem.data)
    return numerical_case("box", problem, jnp.asarray(1.0), made.y0)


def _scalar_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((data["Z"] @ y - data["t"]) ** 2) + 0.5 * jnp.exp(x) * jnp.sum(y**2)


# Logits in a box: without one, every point at infinity is stationary, and whoever throws all logits there is done.
def cleaning(train: int = 1000, trusted: int = 300) -> Case:
    rows = datasets.digits()
    rows = rows._replace(features=np.asarray(rows.features, np.float64))
    order = np.random.default_rng(0).permutation(len(rows.labels))
    clean, held_out = rows.take(order[:train]), rows.take(order[train : train + trusted])
    noisy = clean._replace(labels=datasets.symmetric_noise(clean.labels, 0.2, 0))
    problem = hyper_cleaning(noisy, held_out, 1e-2, Box(-5.0, 5.0))
    y0 = jnp.zeros((10, rows.features.shape[1]))
    return numerical_case("box", problem, jnp.zeros(train), y0)
