"""Pricing: a seller, and buyers who react

A seller sets two prices. Three kinds of buyers with logarithmic utilities react: they buy less of what is expensive.
The profit as a function of prices is what the upper level sees, and no formula for it is known. The path is that of
the default solver; every point on it comes from solving for the buyers' choices and differentiating them. Prices
are bounded by law.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.patches import Rectangle

from proxbi import Box, Problem, minimize, value_and_hypergradient
from shared import BLUE, GREEN, ORANGE, PURPLE, figure, options, save

given = options(__doc__)
GRID = 12 if given.small else 60

tastes = jnp.array([[1.8, 0.5], [0.9, 0.9], [0.4, 2.2]])  # of buyers for goods
costs, has = jnp.array([0.4, 0.3]), 0.2


def lower(x, y):  # what a buyer pays, less what he likes, and storage
    return jnp.sum(x * y) - jnp.sum(tastes * jnp.log(y)) + 0.05 * jnp.sum(jnp.sum(y, axis=1) ** 2)


def upper(x, y):  # minus the profit; a little of each good they have already
    return -jnp.sum((x - costs) * (y - has))


path = []
problem = Problem(upper, lower, Box(jnp.array([0.2, 0.2]), jnp.array([2.6, 1.9])))
result = minimize(
    problem,
    jnp.array([0.5, 0.6]),
    jnp.ones((3, 2)),
    every=1,
    callbacks=[lambda row, snapshot: path.append(np.asarray(snapshot.state.x))],
)
print(result)
path = np.unique(np.stack([np.array([0.5, 0.6]), *path]).round(9), axis=0)
path = path[np.argsort(np.linalg.norm(path - path[0], axis=1))]

prices = jnp.linspace(0.3, 2.9, GRID)
grid = jnp.stack(jnp.meshgrid(prices, prices), axis=-1).reshape(-1, 2)
profit = jax.jit(jax.vmap(lambda x: -value_and_hypergradient(problem, x, jnp.ones((3, 2)), accuracy=1e-3)[0]))(grid)
demand = jax.jit(
    jax.vmap(
        lambda p: value_and_hypergradient(problem, jnp.array([1.0, 1.0]).at[0].set(p), jnp.ones((3, 2)))[2].y[:, 0]
    )
)(prices)

canvas = figure(9.5, 4)
left, right = canvas.subplots(1, 2, width_ratios=[1.25, 1])
drawn = left.contourf(prices, prices, np.asarray(profit).reshape(GRID, GRID), 14, cmap="cividis")
left.add_patch(Rectangle((0.2, 0.2), 2.4, 1.7, fill=False, ec="white", ls="--"))
left.plot(*path.T, "o-", color=ORANGE, ms=5)
left.plot(*result.x, "*", color=ORANGE, ms=18, mec="white")
left.text(0.4, 1.95, "bounded by law", color="white", fontsize=9)
left.set(
    xlabel="price of the first good",
    ylabel="price of the second",
    title="Profit, and the path of the solver",
    xlim=(0.3, 2.9),
    ylim=(0.3, 2.9),
)
left.grid(visible=False)
canvas.colorbar(drawn, ax=left, shrink=0.9)
for buyer, colour in enumerate((BLUE, GREEN, PURPLE)):
    right.plot(prices, demand[:, buyer], color=colour, label=f"buyer {buyer + 1}")
right.axvline(float(result.x[0]), color=ORANGE, ls="--", label="price chosen")
right.set(xlabel="price of the first good", ylabel="how much of it they hold", title="How the buyers react")
right.legend()
save(canvas, given)
