"""What a learner is given before it learns: representations, starting points, data, kernels, weights."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.problem import Problem
from proxbi.regularizers import Box, NegativeCappedL1, Nuclear, Simplex, Zero
from suite.case import Case, Data, numerical_case

Tree = dict[str, Array]


def _logistic_loss(margins: Array) -> Array:
    return jnp.logaddexp(0.0, -margins)


def _cross_entropy(scores: Array, chosen: Array) -> Scalar:
    """The mean over rows; `chosen` has a 1 in the column of the right class."""
    return -jnp.mean(jnp.sum(chosen * jax.nn.log_softmax(scores, axis=-1), axis=-1))


def _labels(draw: np.random.Generator, margins: np.ndarray) -> np.ndarray:
    """1 with probability sigmoid(margin), else -1."""
    return np.where(draw.uniform(size=margins.shape) < 1 / (1 + np.exp(-margins)), 1.0, -1.0)


def _arrays(**data: np.ndarray) -> Data:
    return {name: jnp.asarray(array) for name, array in data.items()}


# Hyper-representation: a linear map to few features that many regression tasks share (upper), the ridge regression of
# each task on them (lower). Weight decay on the map: else it grows so that the ridge does not matter.
# Franceschi, Frasconi, Salzo, Grazzi, Pontil, "Bilevel programming for hyperparameter optimization and meta-learning",
# 2018; Grazzi, Franceschi, Pontil, Salzo, "On the iteration complexity of hypergradient computation", 2020.
def representation(tasks: int = 8, rows: int = 15, inputs: int = 8, features: int = 2) -> Case:
    draw = np.random.default_rng(1)
    truth = draw.normal(size=(tasks, features)) @ draw.normal(size=(features, inputs))
    design = draw.normal(size=(2, tasks, rows, inputs))
    target = np.einsum("stri,ti->str", design, truth) + 0.3 * draw.normal(size=(2, tasks, rows))
    data = _arrays(Z=design[0], t=target[0], Z_held_out=design[1], t_held_out=target[1])
    problem = Problem(_representation_upper, _representation_lower, Zero(), data)
    x0 = jnp.asarray(0.5 * draw.normal(size=(inputs, features)))
    return numerical_case("none", problem, x0, jnp.zeros((tasks, features)))


def _representation_upper(x: Array, y: Array, data: Data) -> Scalar:
    errors = jnp.einsum("tri,if,tf->tr", data["Z_held_out"], x, y) - data["t_held_out"]
    return 0.5 * jnp.mean(errors**2) + 0.005 * jnp.sum(x**2)


def _representation_lower(x: Array, y: Array, data: Data) -> Scalar:
    errors = jnp.einsum("tri,if,tf->tr", data["Z"], x, y) - data["t"]
    return 0.5 * jnp.sum(jnp.mean(errors**2, axis=1)) + 0.05 * jnp.sum(y**2)


# iMAML: a start (upper) near which the logistic regression of every task (lower) finds what does well on its other
# rows. Rajeswaran, Finn, Kakade, Levine, "Meta-learning with implicit gradients", 2019.
def imaml(tasks: int = 6, rows: int = 12, features: int = 5) -> Case:
    draw = np.random.default_rng(2)
    truth = 1.0 + 0.7 * draw.normal(size=(tasks, features))
    offset = -0.5 + 0.5 * draw.normal(size=tasks)
    design = draw.normal(size=(2, tasks, rows, features))
    margins = np.einsum("strf,tf->str", design, truth) + offset[:, None]
    target = _labels(draw, margins)
    data = _arrays(Z=design[0], t=target[0], Z_held_out=design[1], t_held_out=target[1])
    x0 = {"weights": jnp.zeros(features), "bias": jnp.zeros(())}
    y0 = {"weights": jnp.zeros((tasks, features)), "bias": jnp.zeros(tasks)}
    return numerical_case("none", Problem(_imaml_upper, _imaml_lower, Zero(), data), x0, y0)


def _imaml_margins(y: Tree, design: Array, target: Array) -> Array:
    return target * (jnp.einsum("trf,tf->tr", design, y["weights"]) + y["bias"][:, None])


def _imaml_upper(x: Tree, y: Tree, data: Data) -> Scalar:
    return jnp.mean(_logistic_loss(_imaml_margins(y, data["Z_held_out"], data["t_held_out"])))


def _imaml_lower(x: Tree, y: Tree, data: Data) -> Scalar:
    loss = jnp.sum(jnp.mean(_logistic_loss(_imaml_margins(y, data["Z"], data["t"])), axis=1))
    distance = jnp.sum((y["weights"] - x["weights"]) ** 2) + jnp.sum((y["bias"] - x["bias"]) ** 2)
    return loss + 0.25 * distance


# Dataset distillation: a few synthetic rows, two for each class (upper), such that a softmax regression on them (lower)
# does well on all real ones. Wang, Zhu, Torralba, Efros, "Dataset distillation", 2018; Nguyen, Chen, Lee, "Dataset
# meta-learning from kernel ridge-regression", 2021.
def distillation(classes: int = 3, each: int = 2, rows: int = 120, features: int = 4) -> Case:
    draw = np.random.default_rng(3)
    centres = 0.8 * draw.normal(size=(classes, features))
    kinds = draw.integers(classes, size=rows)
    design = centres[kinds] + draw.normal(size=(rows, features))
    synthetic = np.repeat(np.eye(classes), each, axis=0)
    data = _arrays(Z=design, chosen=np.eye(classes)[kinds], synthetic=synthetic)
    problem = Problem(_distillation_upper, _distillation_lower, Box(-0.5, 0.5), data)
    x0 = jnp.asarray(0.5 * draw.uniform(-1, 1, size=(classes * each, features)))
    return numerical_case("box", problem, x0, jnp.zeros((classes, features)))


def _distillation_upper(x: Array, y: Array, data: Data) -> Scalar:
    return _cross_entropy(data["Z"] @ y.T, data["chosen"])


def _distillation_lower(x: Array, y: Array, data: Data) -> Scalar:
    return _cross_entropy(x @ y.T, data["synthetic"]) + 0.025 * jnp.sum(y**2)


# Automatic relevance determination: a length scale for each input and a ridge (upper, logarithms), kernel ridge
# regression by its dual coefficients (lower). Two inputs of five matter; the scales of the others go to their bound.
# Neal, "Bayesian learning for neural networks", 1996; Keerthi, Sindhwani, Chapelle, "An efficient method for
# gradient-based adaptation of hyperparameters in SVM models", 2006.
def ard(rows: int = 40, inputs: int = 5) -> Case:
    draw = np.random.default_rng(4)
    design = draw.normal(size=(2, rows, inputs))
    target = np.sin(2 * design[..., 0]) + 0.5 * design[..., 1] ** 2 + 0.1 * draw.normal(size=(2, rows))
    data = _arrays(Z=design[0], t=target[0], Z_held_out=design[1], t_held_out=target[1])
    problem = Problem(_ard_upper, _ard_lower, Box(-4.0, 4.0), data)
    x0 = {"scales": jnp.zeros(inputs), "ridge": jnp.asarray(-2.0)}
    return numerical_case("box", problem, x0, jnp.zeros(rows))


def _ard_kernel(scales: Array, left: Array, right: Array) -> Array:
    distances = (left[:, None] - right[None]) ** 2
    return jnp.exp(-0.5 * distances @ jnp.exp(-2 * scales))


def _ard_upper(x: Tree, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((_ard_kernel(x["scales"], data["Z_held_out"], data["Z"]) @ y - data["t_held_out"]) ** 2)


def _ard_lower(x: Tree, y: Array, data: Data) -> Scalar:
    fitted = _ard_kernel(x["scales"], data["Z"], data["Z"]) @ y + jnp.exp(x["ridge"]) * y
    return 0.5 * y @ fitted - data["t"] @ y


# Multiple kernels: a convex combination of kernels of several widths and inputs (upper), kernel ridge regression with
# it by its dual coefficients (lower). Lanckriet, Cristianini, Bartlett, El Ghaoui, Jordan, "Learning the kernel matrix
# with semidefinite programming", 2004.
def kernels(rows: int = 40) -> Case:
    draw = np.random.default_rng(5)
    design = draw.normal(size=(2, rows, 3))
    target = np.sin(3 * design[..., 0]) + 0.5 * design[..., 1] + 0.2 * draw.normal(size=(2, rows))
    both = design.reshape(2 * rows, 3)
    distances = (both[:, None] - both[None]) ** 2
    widths = np.array([0.3, 1.0, 3.0])[:, None, None]
    gaussian = [np.exp(-0.5 * distances[..., kind] / widths**2) for kind in range(3)]
    all_kernels = np.concatenate([*gaussian, both.T[:, :, None] * both.T[:, None]])
    data = _arrays(
        K=all_kernels[:, :rows, :rows], t=target[0], K_held_out=all_kernels[:, rows:, :rows], t_held_out=target[1]
    )
    problem = Problem(_kernels_upper, _kernels_lower, Simplex(), data)
    number = len(all_kernels)
    return numerical_case("simplex", problem, jnp.full(number, 1 / number), jnp.zeros(rows))


def _kernels_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((jnp.tensordot(x, data["K_held_out"], 1) @ y - data["t_held_out"]) ** 2)


def _kernels_lower(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * y @ (jnp.tensordot(x, data["K"], 1) @ y + 0.1 * y) - data["t"] @ y


# Low rank: biases of many regression tasks, a matrix of low rank (upper, nuclear norm), towards which the regression of
# each task is drawn (lower). Pong, Tseng, Ji, Ye, "Trace norm regularization: reformulations, algorithms, and
# multi-task learning", 2010; Denevi, Ciliberto, Grazzi, Pontil, "Learning-to-learn stochastic gradient descent with
# biased regularization", 2019.
def low_rank(tasks: int = 6, rows: int = 6, features: int = 8) -> Case:
    draw = np.random.default_rng(6)
    truth = draw.normal(size=(tasks, 2)) @ draw.normal(size=(2, features))
    design = draw.normal(size=(2, tasks, rows, features))
    target = np.einsum("strf,tf->str", design, truth) + 0.3 * draw.normal(size=(2, tasks, rows))
    data = _arrays(Z=design[0], t=target[0], Z_held_out=design[1], t_held_out=target[1])
    problem = Problem(_low_rank_upper, _low_rank_lower, Nuclear(0.02), data)
    return numerical_case("nuclear", problem, jnp.zeros((tasks, features)), jnp.zeros((tasks, features)))


def _low_rank_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((jnp.einsum("trf,tf->tr", data["Z_held_out"], y) - data["t_held_out"]) ** 2)


def _low_rank_lower(x: Array, y: Array, data: Data) -> Scalar:
    errors = jnp.einsum("trf,tf->tr", data["Z"], y) - data["t"]
    return 0.5 * jnp.sum(jnp.mean(errors**2, axis=1)) + 0.1 * jnp.sum((y - x) ** 2)


# Weights of sources: how much each of several sources counts (upper, on a simplex) in a logistic regression (lower),
# where more and more of their labels are turned around. Ren, Zeng, Yang, Urtasun, "Learning to reweight examples for
# robust deep learning", 2018; Fan, Pagliardini, Jaggi, "DoGE: domain reweighting with generalization estimation", 2024.
def logistic_sources(sources: int = 5, rows: int = 25, features: int = 6) -> Case:
    draw = np.random.default_rng(7)
    truth = 1.5 * draw.normal(size=features)
    design = draw.normal(size=(sources, rows, features))
    turned = draw.uniform(size=(sources, rows)) < np.linspace(0.0, 0.7, sources)[:, None]
    target = np.where(turned, -1.0, 1.0) * _labels(draw, design @ truth)
    held_out = draw.normal(size=(2 * rows, features))
    data = _arrays(Z=design, t=target, Z_held_out=held_out, t_held_out=_labels(draw, held_out @ truth))
    problem = Problem(_logistic_sources_upper, _logistic_sources_lower, Simplex(), data)
    return numerical_case("simplex", problem, jnp.full(sources, 1 / sources), jnp.zeros(features))


def _logistic_sources_upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(_logistic_loss(data["t_held_out"] * (data["Z_held_out"] @ y)))


def _logistic_sources_lower(x: Array, y: Array, data: Data) -> Scalar:
    losses = jnp.mean(_logistic_loss(data["t"] * (data["Z"] @ y)), axis=1)
    return jnp.sum(x * losses) + 0.01 * jnp.sum(y**2)


# One penalty e^{x_i} for the weights of each feature (upper) of a softmax regression with biases (lower).
# Bengio, "Gradient-based optimization of hyperparameters", 2000; Pedregosa, "Hyperparameter optimization with
# approximate gradient", 2016.
def multinomial(classes: int = 3, rows: int = 60, features: int = 8) -> Case:
    draw = np.random.default_rng(8)
    truth = np.where(np.arange(features) < 3, 1.0, 0.0)[:, None] * draw.normal(size=(features, classes))
    design = draw.normal(size=(2, rows, features))
    kinds = np.argmax(design @ truth + draw.gumbel(size=(2, rows, classes)), axis=-1)
    chosen = np.eye(classes)[kinds]
    data = _arrays(Z=design[0], chosen=chosen[0], Z_held_out=design[1], chosen_held_out=chosen[1])
    problem = Problem(_multinomial_upper, _multinomial_lower, Box(-8.0, 2.0), data)
    y0 = {"weights": jnp.zeros((features, classes)), "bias": jnp.zeros(classes)}
    return numerical_case("box", problem, jnp.full(features, -3.0), y0)


def _multinomial_upper(x: Array, y: Tree, data: Data) -> Scalar:
    return _cross_entropy(data["Z_held_out"] @ y["weights"] + y["bias"], data["chosen_held_out"])


def _multinomial_lower(x: Array, y: Tree, data: Data) -> Scalar:
    loss = _cross_entropy(data["Z"] @ y["weights"] + y["bias"], data["chosen"])
    # A small ridge on everything: adding one number to all biases changes no probability.
    ridge = 5e-4 * (jnp.sum(y["weights"] ** 2) + jnp.sum(y["bias"] ** 2))
    return loss + ridge + 0.5 * jnp.sum(jnp.exp(x)[:, None] * y["weights"] ** 2)


# Data hyper-cleaning with the h of the paper, which drives every weight away from 1/2: one logit for each row (upper)
# of a logistic regression (lower). A little weight decay on the logits, as without it points at infinity are
# stationary. Franceschi, Donini, Frasconi, Pontil, "Forward and reverse gradient-based hyperparameter optimization",
# 2017; Chen, Kailkhura, Zhou, "An accelerated proximal algorithm for regularized nonconvex and nonsmooth bi-level
# optimization", 2023.
def capped_cleaning(rows: int = 60, trusted: int = 40, features: int = 5) -> Case:
    draw = np.random.default_rng(9)
    truth = 1.5 * draw.normal(size=features)
    design, held_out = draw.normal(size=(rows, features)), draw.normal(size=(trusted, features))
    turned = draw.uniform(size=rows) < 0.25
    target = np.where(turned, -1.0, 1.0) * _labels(draw, design @ truth)
    data = _arrays(Z=design, t=target, Z_held_out=held_out, t_held_out=_labels(draw, held_out @ truth))
    problem = Problem(_capped_cleaning_upper, _capped_cleaning_lower, NegativeCappedL1(2e-3, 3.0), data)
    return numerical_case("negative capped l1", problem, jnp.ones(rows), jnp.zeros(features))


def _capped_cleaning_upper(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(_logistic_loss(data["t_held_out"] * (data["Z_held_out"] @ y))) + 1e-4 * jnp.sum(x**2)


def _capped_cleaning_lower(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.mean(jax.nn.sigmoid(x) * _logistic_loss(data["t"] * (data["Z"] @ y))) + 0.01 * jnp.sum(y**2)
