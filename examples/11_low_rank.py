"""Low rank: what tasks have in common

Forty regression tasks with twelve rows each in thirty features. Each is pulled towards a bias of its own; the biases of
all tasks form a matrix, the upper variable. A nuclear norm on it says that they have something in common, without
saying what. The matrix that is found has rank 9, exactly; the truth has rank 3, and the six others are small.
"""

import jax.numpy as jnp
import numpy as np

from proxbi import Nuclear, Problem, SquaredL2, minimize
from shared import BLUE, GREY, ORANGE, figure, options, picture, save

given = options(__doc__)
TASKS, FEATURES, ROWS, RANK = (12, 8, 6, 2) if given.small else (40, 30, 12, 3)
STRENGTH, PULL = (0.03, 0.2) if given.small else (0.012, 0.2)

draw = np.random.default_rng(0)
truth = draw.normal(size=(TASKS, RANK)) @ draw.normal(size=(RANK, FEATURES))
truth = truth[np.argsort(truth @ np.linalg.svd(truth)[2][0])]  # so that the picture has order
Z = draw.normal(size=(2, TASKS, ROWS, FEATURES))
t = np.einsum("strf,tf->str", Z, truth) + 0.3 * draw.normal(size=(2, TASKS, ROWS))
data = {"Z": jnp.asarray(Z[0]), "t": jnp.asarray(t[0]), "Z_judge": jnp.asarray(Z[1]), "t_judge": jnp.asarray(t[1])}


def lower(x, y, data):
    errors = jnp.einsum("trf,tf->tr", data["Z"], y) - data["t"]
    return jnp.sum(jnp.mean(errors**2, axis=1)) / 2 + PULL * jnp.sum((y - x) ** 2) / 2


def upper(x, y, data):
    return jnp.mean((jnp.einsum("trf,tf->tr", data["Z_judge"], y) - data["t_judge"]) ** 2) / 2


start = jnp.zeros((TASKS, FEATURES))
found = {}
for name, h in (("SquaredL2", SquaredL2(1e-3)), ("Nuclear", Nuclear(STRENGTH))):
    found[name] = minimize(Problem(upper, lower, h, data), start, start)
    print(name, found[name])

canvas = figure(9.5, 3.6)
panels = canvas.subplots(1, 4, width_ratios=[1, 1, 1, 1.4])
limit = float(np.abs(truth).max())
error = {name: np.sqrt(np.mean((np.asarray(result.x) - truth) ** 2)) for name, result in found.items()}
pictures = {"the truth": truth} | {
    f"{name} (error {error[name]:.2f})": np.asarray(result.x) for name, result in found.items()
}
for axes, (name, matrix) in zip(panels, pictures.items(), strict=False):
    picture(axes, matrix, name, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
panels[0].set_ylabel("tasks")
for axes in panels[:3]:
    axes.set_xlabel("features")
looks = {
    "the truth": (truth, GREY, "s"),
    "SquaredL2": (found["SquaredL2"].x, ORANGE, "^"),
    "Nuclear": (found["Nuclear"].x, BLUE, "o"),
}
for name, (matrix, colour, marker) in looks.items():
    values = np.linalg.svd(np.asarray(matrix), compute_uv=False)
    panels[3].semilogy(
        np.arange(1, len(values) + 1), np.maximum(values, 1e-3), marker=marker, ms=4, lw=1, color=colour, label=name
    )
panels[3].set(title="Singular values", xlabel="number", ylim=(7e-4, None))
panels[3].set_yticks([1e-3, 1e-2, 1e-1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])
panels[3].minorticks_off()
panels[3].legend()
save(canvas, given)
