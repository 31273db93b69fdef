"""What a planner decides before others react, or before a measurement is made: prices, tolls, sensors, filters."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.problem import Problem
from proxbi.regularizers import L1, MCP, Box, Zero
from suite.case import Case, Data, numerical_case, positive_case

# Prices: a seller sets them (upper), buyers with logarithmic utilities react (lower). y is what a buyer holds in the
# end, a little of which he has from the beginning; what he stores costs him the square of its sum. g is finite for y >
# 0 only, and the Newton step from y0 leaves that. Stackelberg pricing: von Stackelberg, "Marktform und Gleichgewicht",
# 1934; with logarithmic utilities, as in Basar and Srikant, "Revenue-maximizing pricing and capacity expansion in a
# many-users regime", 2002.
ENDOWMENT = 0.2


def pricing(goods: int = 4, buyers: int = 3) -> Case:
    draw = np.random.default_rng(10)
    tastes = draw.uniform(0.2, 2.0, size=(buyers, goods))
    data = {"tastes": jnp.asarray(tastes), "costs": jnp.asarray(draw.uniform(0.2, 0.6, size=goods))}
    problem = Problem(_pricing_upper, _pricing_lower, Box(0.1, 2.0), data)
    return positive_case("box", problem, jnp.ones(goods), jnp.ones((buyers, goods)), least=ENDOWMENT)


def _pricing_upper(x: Array, y: Array, data: Data) -> Scalar:
    return -jnp.sum((x - data["costs"]) * (y - ENDOWMENT))


def _pricing_lower(x: Array, y: Array, data: Data) -> Scalar:
    return jnp.sum(x * y) - jnp.sum(data["tastes"] * jnp.log(y)) + 0.05 * jnp.sum(jnp.sum(y, axis=1) ** 2)


# Tolls: few of them (upper, L1), such that drivers who choose among routes by a logit model spend little time in all.
# The lower level is the dual of stochastic user equilibrium: y are the travel times of the links, which grow linearly
# with the flow, v = (y - free) / slope. Its optimality condition is "flow = demand times probability, summed over
# routes". Fisk, "Some developments in equilibrium traffic assignment", 1980; Daganzo, "Unconstrained extremal
# formulation of some transportation equilibrium problems", 1982; Labbe, Marcotte, Savard, "A bilevel model of taxation
# and its application to optimal highway pricing", 1998.
def tolls(size: int = 3) -> Case:
    draw = np.random.default_rng(11)
    links, trips = _grid(size, [((0, 0), (2, 2)), ((0, 0), (1, 2)), ((1, 0), (2, 2))])
    data = {
        "free": jnp.asarray(draw.uniform(1.0, 2.0, size=links)),
        "slope": jnp.asarray(draw.uniform(0.1, 1.0, size=links)),
        "demand": jnp.array([4.0, 3.0, 3.0]),
        "routes": jnp.asarray(trips),
        "none": jnp.asarray(np.where(trips.sum(axis=-1) > 0, 0.0, -np.inf)),
    }
    return numerical_case("l1", Problem(_tolls_upper, _tolls_lower, L1(0.02), data), jnp.zeros(links), data["free"])


def _grid(size: int, pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> tuple[int, np.ndarray]:
    """The number of links of a grid of streets, and which of them (last axis) each route of each pair takes; rows of
    zeros fill up.
    """
    number = {}
    for i in range(size):
        for j in range(size):
            for step in ((1, 0), (0, 1)):
                if max(i + step[0], j + step[1]) < size:
                    number[(i, j), step] = len(number)
    routes = []
    for (i, j), (k, m) in pairs:
        routes.append([])
        for downs in combinations(range(k - i + m - j), k - i):
            at, taken = (i, j), np.zeros(len(number))
            for turn in range(k - i + m - j):
                step = (1, 0) if turn in downs else (0, 1)
                taken[number[at, step]] = 1.0
                at = (at[0] + step[0], at[1] + step[1])
            routes[-1].append(taken)
    most = max(map(len, routes))
    filled = [found + [np.zeros(len(number))] * (most - len(found)) for found in routes]
    return len(number), np.array(filled)


def _tolls_upper(x: Array, y: Array, data: Data) -> Scalar:
    flow = (y - data["free"]) / data["slope"]
    return jnp.sum(flow * y) / jnp.sum(data["demand"])


def _tolls_lower(x: Array, y: Array, data: Data) -> Scalar:
    costs = data["routes"] @ (y + x)
    chosen = jax.nn.logsumexp(data["none"] - costs, axis=1)
    return jnp.sum(data["demand"] * chosen) + 0.5 * jnp.sum((y - data["free"]) ** 2 / data["slope"])


# Filters: which ones (upper) make the smoothed absolute values of what they let through a good penalty for denoising
# (lower). Kunisch and Pock, "A bilevel optimization approach for parameter learning in variational models", 2013; Chen,
# Ranftl, Pock, "Insights into analysis operator learning", 2014.
SMOOTHING = 0.1


def filters(signals: int = 3, length: int = 48) -> Case:
    draw = np.random.default_rng(12)
    steps = 1.5 * draw.normal(size=(signals, 6))
    clean = np.repeat(steps, length // 6, axis=1) + np.linspace(0, 1, length)
    data = {"clean": jnp.asarray(clean), "noisy": jnp.asarray(clean + 0.4 * draw.normal(size=clean.shape))}
    x0 = 0.3 * jnp.array([[0.0, 1.0, -1.0], [1.0, -2.0, 1.0]])
    return numerical_case("none", Problem(_filters_upper, _filters_lower, Zero(), data), x0, data["noisy"])


def _filtered(kernels: Array, signals: Array) -> Array:
    width = kernels.shape[1]
    length = signals.shape[1] - width + 1
    windows = jnp.stack([signals[:, k : k + length] for k in range(width)])
    return jnp.tensordot(kernels, windows, 1)


def _filters_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((y - data["clean"]) ** 2)


def _filters_lower(x: Array, y: Array, data: Data) -> Scalar:
    penalty = jnp.sum(jnp.sqrt(_filtered(x, y) ** 2 + SMOOTHING**2))
    return 0.5 * jnp.sum((y - data["noisy"]) ** 2) + penalty


# Sensors: which of many to use (upper, with a concave penalty on their weights), such that unknown profiles are
# reconstructed well from noisy blurred readings by a smooth fit (lower). Weights are squares, as they must not be
# negative, and readings cost a little. Haber, Horesh, Tenorio, "Numerical methods for experimental design of
# large-scale linear ill-posed inverse problems", 2008.
READING = 1e-4


def sensors(number: int = 20, points: int = 12, profiles: int = 15) -> Case:
    draw = np.random.default_rng(13)
    places, sites = np.linspace(0, 1, points), np.linspace(0, 1, number)
    blur = np.exp(-0.5 * ((sites[:, None] - places) / 0.1) ** 2)
    roughness = np.diff(np.eye(points), axis=0)
    prior = roughness.T @ roughness + 0.05 * np.eye(points)
    truth = draw.normal(size=(profiles, points)) @ np.linalg.cholesky(np.linalg.inv(prior)).T
    noise = draw.uniform(0.1, 1.0, size=number)
    data = {
        "blur": jnp.asarray(blur),
        "prior": jnp.asarray(prior),
        "truth": jnp.asarray(truth),
        "read": jnp.asarray(truth @ blur.T + noise * draw.normal(size=(profiles, number))),
    }
    problem = Problem(_sensors_upper, _sensors_lower, MCP(0.01, 50.0), data)
    return numerical_case("mcp", problem, jnp.ones(number), jnp.zeros((profiles, points)))


def _sensors_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((y - data["truth"]) ** 2) + READING * jnp.sum(x**2)


def _sensors_lower(x: Array, y: Array, data: Data) -> Scalar:
    errors = y @ data["blur"].T - data["read"]
    return 0.5 * jnp.sum(x**2 * errors**2) + 0.5 * jnp.sum((y @ data["prior"]) * y)


# Inverse optimal control: what a mover cares about (upper: logarithms of the weights of speed, effort and keeping to
# his lane) such that the best path (lower) is the one seen. Keeping to the goal has the weight 1. Mombaur, Truong,
# Laumond, "From human to humanoid locomotion: an inverse optimal control approach", 2010; Keshavarz, Wang, Boyd,
# "Imputing a convex objective function", 2011.
def inverse_control(steps: int = 20) -> Case:
    draw = np.random.default_rng(14)
    time = np.linspace(0, 1, steps)[:, None]
    lane = np.concatenate([time, np.sin(np.pi * time)], axis=1)
    goal = np.array([2.0, -1.5])
    weights = np.array([0.5, -0.5, -1.5])
    data = {"lane": jnp.asarray(lane), "goal": jnp.asarray(goal), "seen": jnp.asarray(lane)}
    problem = Problem(_inverse_control_upper, _inverse_control_lower, Zero(), data)
    made = numerical_case("none", problem, jnp.asarray(weights), jnp.asarray(lane))
    seen = made.exactly(made.x0, made.y0).solution + 0.02 * jnp.asarray(draw.normal(size=lane.shape))
    problem = Problem(_inverse_control_upper, _inverse_control_lower, Zero(), data | {"seen": seen})
    return numerical_case("none", problem, jnp.zeros(len(weights)), jnp.asarray(lane))


def _inverse_control_upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.mean((y - data["seen"]) ** 2)


def _inverse_control_lower(x: Array, y: Array, data: Data) -> Scalar:
    speed, effort = jnp.diff(y, axis=0), jnp.diff(y, n=2, axis=0)
    off_lane = jnp.sum(jnp.sqrt(jnp.sum((y - data["lane"]) ** 2, axis=1) + 0.01))
    goal, start = jnp.sum((y[-1] - data["goal"]) ** 2), jnp.sum((y[0] - data["lane"][0]) ** 2)
    parts = jnp.stack([jnp.sum(speed**2), 10 * jnp.sum(effort**2), off_lane])
    return 0.5 * jnp.sum(jnp.exp(x) * parts) + 0.5 * goal + 0.5 * start
