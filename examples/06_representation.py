"""Hyper-representation: features that many tasks share

Thirty regression tasks with twelve rows each, in twenty inputs. Alone no task can be learned. But all of them depend
on the same three directions. The upper level learns a linear map to three features from all tasks together; the lower
level is the ridge regression of each task on them. The figure shows new tasks, which had no part in it. ("Features
known" are the true directions of length 1: the map that is learned has a better length, too.)
"""

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import Problem, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
TASKS, INPUTS, FEATURES, ROWS = (10, 8, 2, 10) if given.small else (30, 20, 3, 12)
RIDGE = 0.05

draw = np.random.default_rng(0)
directions = np.linalg.qr(draw.normal(size=(INPUTS, FEATURES)))[0]


def tasks(number, rows):
    truth = draw.normal(size=(number, FEATURES)) @ directions.T * 2
    Z = draw.normal(size=(number, rows, INPUTS))
    return jnp.asarray(Z), jnp.asarray(np.einsum("tri,ti->tr", Z, truth) + 0.3 * draw.normal(size=(number, rows)))


Z, t = tasks(TASKS, 2 * ROWS)  # of each task, one half to fit and one to judge
data = {"Z": Z[:, :ROWS], "t": t[:, :ROWS], "Z_judge": Z[:, ROWS:], "t_judge": t[:, ROWS:]}


def lower(x, y, data):
    errors = jnp.einsum("tri,if,tf->tr", data["Z"], x, y) - data["t"]
    return jnp.sum(jnp.mean(errors**2, axis=1)) / 2 + RIDGE * jnp.sum(y**2)


def upper(x, y, data):
    errors = jnp.einsum("tri,if,tf->tr", data["Z_judge"], x, y) - data["t_judge"]
    return jnp.mean(errors**2) / 2 + 1e-3 * jnp.sum(x**2)


x0 = jnp.asarray(0.3 * draw.normal(size=(INPUTS, FEATURES)))
result = minimize(Problem(upper, lower, data=data), x0, jnp.zeros((TASKS, FEATURES)))
print(result)

new_Z, new_t = tasks(200, 60)


@jax.jit(static_argnames="rows")
def error(maps, rows):  # of ridge regressions of the new tasks on mapped inputs, from so many rows
    def one(Z, t):
        phi = Z[:rows] @ maps
        y = jnp.linalg.solve(phi.T @ phi / rows + 2 * RIDGE * jnp.eye(maps.shape[1]), phi.T @ t[:rows] / rows)
        return jnp.mean((Z[30:] @ maps @ y - t[30:]) ** 2)

    return jnp.mean(jax.vmap(one)(new_Z, new_t))


canvas = figure(9, 3.8)
left, right = canvas.subplots(1, 2, width_ratios=[1.4, 1])
numbers = [3, 4, 6, 8, 12, 16, 24, 30]
maps = {
    "all inputs": (jnp.eye(INPUTS), GREY, "s"),
    "features learned": (result.x, BLUE, "o"),
    "features known": (jnp.asarray(directions), ORANGE, "^"),
}
for name, (each, colour, marker) in maps.items():
    left.plot(numbers, [error(each, rows) for rows in numbers], marker=marker, color=colour, label=name)
left.axhline(0.09, color="black", ls=":", lw=1)
left.set(
    xscale="log", yscale="log", xlabel="rows of a new task", ylabel="squared error", title="New tasks, on rows not seen"
)
left.set_xticks(numbers, map(str, numbers), minor=False)
left.minorticks_off()
left.legend(loc="lower left", bbox_to_anchor=(0, 0.06))
overlap = np.linalg.svd(np.linalg.qr(np.asarray(result.x))[0].T @ directions)[1]
bars = right.bar([f"{place + 1}" for place in range(FEATURES)], overlap, color=BLUE, width=0.6)
right.bar_label(bars, fmt="%.3f")
right.set(title="Learned span against the truth", xlabel="principal angle", ylabel="its cosine", ylim=(0, 1.1))
right.grid(visible=False)
save(canvas, given)
