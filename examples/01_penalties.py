"""Thousands of penalties

A ridge regression with 1,500 features, of which 40 matter. One penalty for all has to be a compromise. With one
penalty $e^{x_i}$ for each feature, chosen on held-out rows, the features that do not matter are switched off. One
hypergradient costs as much for 1,500 penalties as for one. The regularizer $h$ keeps them together, so that they do
not overfit the rows that choose them.
"""

import jax.numpy as jnp
import numpy as np

from proxbi import Problem, SquaredL2, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
FEATURES, RELEVANT, ROWS = (200, 15, 150) if given.small else (1500, 40, 600)

draw = np.random.default_rng(0)
truth = np.where(np.arange(FEATURES) < RELEVANT, draw.normal(size=FEATURES), 0.0)


def rows(number):
    z = draw.normal(size=(number, FEATURES))
    return jnp.asarray(z), jnp.asarray(z @ truth + draw.normal(size=number))


train, held_out, test = rows(ROWS), rows(ROWS), rows(4000)


def loss(y, part):
    return jnp.mean((part[0] @ y - part[1]) ** 2) / 2


def lower(x, y, data):
    return loss(y, data["train"]) + jnp.sum(jnp.exp(x) * y**2) / 2


def upper(x, y, data):
    return loss(y, data["held_out"])


data = {"train": train, "held_out": held_out}
one = Problem(upper, lower, data=data)
single = minimize(one, jnp.array(-2.0), jnp.zeros(FEATURES))
start = jnp.full(FEATURES, single.x)
many = minimize(Problem(upper, lower, SquaredL2(0.3 / FEATURES).shift(start), data), start, single.y)
print(single, many, sep="\n")

errors = {
    "one penalty": loss(single.y, test),
    f"{FEATURES:,} penalties": loss(many.y, test),
    "noise alone": 0.5,
}
canvas = figure()
left, right = canvas.subplots(1, 2, width_ratios=[2, 1])
order = np.arange(FEATURES)
left.scatter(order[RELEVANT:], many.x[RELEVANT:], s=5, color=GREY, label="features that do not matter", rasterized=True)
size = 12 + 60 * np.abs(truth[:RELEVANT])
left.scatter(order[:RELEVANT], many.x[:RELEVANT], s=size, color=ORANGE, label="features that matter (by size)")
left.axhline(float(single.x), color=BLUE, ls="--", label="the best single penalty")
left.set(xlabel="feature", ylabel="log penalty", title="What each feature pays")
left.legend(loc="lower right")
bars = right.bar(list(errors), [2 * float(error) for error in errors.values()], color=[BLUE, ORANGE, GREY], width=0.65)
right.bar_label(bars, fmt="%.2f")
right.set(title="Squared error on new rows")
right.tick_params(axis="x", labelsize=8.5)
right.grid(visible=False)
save(canvas, given)
