r"""Thousands of penalties

A ridge regression with 2,000 features, of which 40 matter, and 600 rows. One penalty for all features has to be a
compromise. With a penalty $e^{x_i}$ for each, chosen on 600 held-out rows, most features that matter pay far less than
the others. A hypergradient costs as much for 2,000 penalties as for one. The regularizer $h$ holds them near the
best single penalty, so that they do not overfit the rows that choose them.
"""

import jax.numpy as jnp
import numpy as np

from proxbi import Problem, SquaredL2, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
FEATURES, RELEVANT, ROWS = (200, 15, 150) if given.small else (2000, 40, 600)

draw = np.random.default_rng(0)
truth = np.where(np.arange(FEATURES) < RELEVANT, draw.normal(size=FEATURES), 0.0)


def rows(number):
    Z = draw.normal(size=(number, FEATURES))
    return {"Z": jnp.asarray(Z), "t": jnp.asarray(Z @ truth + draw.normal(size=number))}


data, test = {"train": rows(ROWS), "held_out": rows(ROWS)}, rows(4000)


def loss(y, part):
    return jnp.mean((part["Z"] @ y - part["t"]) ** 2) / 2


def lower(x, y, data):
    return loss(y, data["train"]) + jnp.sum(jnp.exp(x) * y**2) / 2


def upper(x, y, data):
    return loss(y, data["held_out"])


# One penalty for all: ridge regressions on a grid, from one singular value decomposition.
u, s, v = np.linalg.svd(np.asarray(data["train"]["Z"]), full_matrices=False)
fits = {log: v.T @ (s / (s**2 + ROWS * np.exp(log)) * (u.T @ data["train"]["t"])) for log in np.linspace(-8, 2, 101)}
losses = {log: loss(y, data["held_out"]) for log, y in fits.items()}
single = max(log for log, value in losses.items() if value <= 1.001 * min(losses.values()))  # the largest of the best

start = jnp.full(FEATURES, single)
problem = Problem(upper, lower, SquaredL2(1 / FEATURES).shift(start), data)
many = minimize(problem, start, jnp.asarray(fits[single]), rtol=1e-2)
print(many)

canvas = figure()
left, right = canvas.subplots(1, 2, width_ratios=[2, 1])
aside = draw.uniform(-0.28, -0.08, FEATURES - RELEVANT)  # side by side, so that all can be seen
left.scatter(aside, many.x[RELEVANT:], s=3, color=GREY, label=f"the {FEATURES - RELEVANT:,} features without effect")
left.scatter(
    np.abs(truth[:RELEVANT]), many.x[:RELEVANT], s=36, color=ORANGE, label=f"the {RELEVANT} features that matter"
)
left.axhline(single, color=BLUE, ls="--", label="the best single penalty")
left.set(xlabel="size of the true coefficient", ylabel="log penalty", title="What each feature pays")
left.legend(loc="upper right")
errors = {
    "one penalty": 2 * loss(fits[single], test),
    f"{FEATURES:,} penalties": 2 * loss(many.y, test),
    "the noise\nalone": 1.0,
}
bars = right.bar(list(errors), [float(error) for error in errors.values()], color=[BLUE, ORANGE, GREY], width=0.65)
right.bar_label(bars, fmt="%.2f")
right.set(title="Squared error on new rows")
right.tick_params(axis="x", labelsize=8.5)
right.grid(visible=False)
save(canvas, given)
