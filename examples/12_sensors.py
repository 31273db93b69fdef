"""Few sensors: convex and nonconvex sparsity

Forty places where a sensor could be put to see temperature profiles through a blur. The upper level chooses how much
each sensor counts, such that profiles are reconstructed well, and pays for each sensor. `L1` shrinks all of them; the
nonconvex `MCP` and `L0` switch sensors off and leave the others alone. Nonconvex problems have many stationary
points, so both start where `L1` ended.
"""

import jax.numpy as jnp
import numpy as np

from proxbi import L0, L1, MCP, Problem, minimize
from shared import BLUE, GREEN, ORANGE, figure, options, save

given = options(__doc__)
SENSORS, POINTS, PROFILES = (16, 10, 10) if given.small else (40, 24, 60)

draw = np.random.default_rng(0)
places, sites = np.linspace(0, 1, POINTS), np.linspace(0, 1, SENSORS)
blur = np.exp(-0.5 * ((sites[:, None] - places) / 0.06) ** 2)
rough = np.diff(np.eye(POINTS), axis=0)
prior = rough.T @ rough + 0.05 * np.eye(POINTS)
noise = draw.uniform(0.2, 1.2, SENSORS)


def seen(number):
    truth = draw.normal(size=(number, POINTS)) @ np.linalg.cholesky(np.linalg.inv(prior)).T
    read = truth @ blur.T + noise * draw.normal(size=(number, SENSORS))
    return {"truth": jnp.asarray(truth), "read": jnp.asarray(read)}


def lower(x, y, data):  # a smooth profile that fits the readings
    fit = jnp.sum(x**2 * (y @ jnp.asarray(blur).T - data["read"]) ** 2)
    return fit / 2 + jnp.sum((y @ jnp.asarray(prior)) * y) / 2


def upper(x, y, data):
    return jnp.mean((y - data["truth"]) ** 2) / 2 + 1e-4 * jnp.sum(x**2)


data, test = seen(PROFILES), seen(1000)
start, y0 = jnp.ones(SENSORS), jnp.zeros((PROFILES, POINTS))


def solve(h, x0):
    return minimize(Problem(upper, lower, h, data), x0, y0, steps=400, throw=False)


def error(x):  # on new profiles: the lower solution in closed form
    weights = np.asarray(x) ** 2
    y = np.linalg.solve(blur.T @ (weights[:, None] * blur) + prior, blur.T @ (weights * np.asarray(test["read"])).T).T
    return np.sqrt(np.mean((y - np.asarray(test["truth"])) ** 2))


convex = solve(L1(0.006), start)
found = {"L1": convex, "MCP": solve(MCP(0.03, 20.0), convex.x), "L0": solve(L0(0.0015), convex.x)}
canvas = figure(9.5, 4)
left, right = canvas.subplots(1, 2, width_ratios=[2.4, 1])
for row, (name, colour) in enumerate(zip(found, (ORANGE, BLUE, GREEN), strict=True)):
    x = np.abs(np.asarray(found[name].x))
    left.bar(sites, x / x.max(), width=0.6 / SENSORS, bottom=-1.3 * row, color=colour)
    left.plot(sites[x == 0], np.full(np.sum(x == 0), -1.3 * row), "x", color="#b8bcc3", ms=4)
    left.text(
        -0.03, -1.3 * row + 0.3, f"{name}\n{np.sum(x > 0)} of {SENSORS}", ha="right", color=colour, fontweight="bold"
    )
    print(name, np.sum(x > 0), found[name].status.name, error(found[name].x))
left.plot(sites, 1.15 + 0.35 * noise, color="black", lw=1)
left.text(-0.03, 1.35, "noise of\neach sensor", ha="right", fontsize=9)
left.set(xlabel="place", yticks=[], title="Which sensors are kept (cross: off)", xlim=(-0.02, 1.02))
left.spines["left"].set_visible(False)
left.grid(visible=False)
errors = {"all alike": error(start)} | {name: error(result.x) for name, result in found.items()}
bars = right.bar(list(errors), list(errors.values()), color=["#8a8f98", ORANGE, BLUE, GREEN], width=0.65)
right.bar_label(bars, fmt="%.3f")
right.set(title="Error on new profiles")
right.grid(visible=False)
save(canvas, given)
