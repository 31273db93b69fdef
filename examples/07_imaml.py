"""iMAML: a start from which tasks are learned from five points

Every task is a sine wave with its own amplitude and phase, seen at five points. The lower level fits each task by a
regression that is pulled towards a common start $x$; the upper level chooses the start so that the fits do well on
other points of their tasks. (Rajeswaran et al., *Meta-learning with implicit gradients*, 2019.)
"""

import jax.numpy as jnp
import numpy as np

from proxbi import Problem, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
TASKS, FEATURES, POINTS, PULL = (20, 30, 5, 0.02) if given.small else (100, 60, 5, 0.02)

draw = np.random.default_rng(0)
frequency, offset = draw.normal(scale=0.8, size=FEATURES), draw.uniform(0, 2 * np.pi, FEATURES)


def phi(u):  # random waves
    return np.sqrt(2 / FEATURES) * np.cos(np.asarray(u)[..., None] * frequency + offset)


def tasks(number, points):
    amplitude, phase = draw.uniform(1, 3, (number, 1)), draw.uniform(0, 1.2, (number, 1))
    u = draw.uniform(-4, 4, (number, points))
    return u, amplitude * np.sin(u + phase), (amplitude, phase)


u, t, _ = tasks(TASKS, POINTS + 20)
cut = POINTS
data = {"Z": phi(u[:, :cut]), "t": t[:, :cut], "Z_judge": phi(u[:, cut:]), "t_judge": t[:, cut:]}
data = {name: jnp.asarray(value) for name, value in data.items()}


def lower(x, y, data):
    errors = jnp.einsum("tpf,tf->tp", data["Z"], y) - data["t"]
    return jnp.sum(jnp.mean(errors**2, axis=1)) / 2 + PULL * jnp.sum((y - x) ** 2) / 2


def upper(x, y, data):
    return jnp.mean((jnp.einsum("tpf,tf->tp", data["Z_judge"], y) - data["t_judge"]) ** 2) / 2


result = minimize(Problem(upper, lower, data=data), jnp.zeros(FEATURES), jnp.zeros((TASKS, FEATURES)))
print(result)


def adapted(start, u, t):  # the lower solution for one new task
    Z = phi(u)
    return np.linalg.solve(Z.T @ Z / len(u) + PULL * np.eye(FEATURES), Z.T @ t / len(u) + PULL * start)


new_u, new_t, (amplitude, phase) = tasks(3, POINTS)
line = np.linspace(-4, 4, 200)
canvas = figure(9.5, 3.4)
for task, axes in enumerate(canvas.subplots(1, 3, sharey=True)):
    axes.plot(line, amplitude[task] * np.sin(line + phase[task]), color=GREY, ls=":", label="truth")
    axes.plot(line, phi(line) @ adapted(0.0, new_u[task], new_t[task]), color=ORANGE, ls="--", label="from zero")
    axes.plot(
        line,
        phi(line) @ adapted(np.asarray(result.x), new_u[task], new_t[task]),
        color=BLUE,
        label="from the learned start",
    )
    axes.plot(new_u[task], new_t[task], "o", color="black", ms=6, label="five points", zorder=4)
    axes.set(title=f"New task {task + 1}", xlabel="input", ylim=(-4, 4))
    if task == 0:
        axes.legend(loc="upper left", fontsize=8.5, ncols=2)
save(canvas, given)
