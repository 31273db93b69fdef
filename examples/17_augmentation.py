"""Learned augmentation: how far to turn, shift and stretch

Training digits stand upright, those in use are turned by up to 40 degrees. Each training row is turned, shifted and
stretched by random amounts; how large they are, a number for each kind of change, is learned: the upper level is the
loss on a few rows from use. (After Hataya et al., *Meta approach to data augmentation optimization*, 2022.)
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates
from sklearn.datasets import load_digits

from proxbi import Problem, ProxSABA, Rows, minimize
from shared import BLUE, GREY, ORANGE, figure, options, picture, save

given = options(__doc__)
STEPS, COPIES, SIDE, RIDGE = (400, 2, 8, 1e-2) if given.small else (5000, 4, 8, 1e-2)
KINDS = ("turn", "shift across", "shift down", "stretch")
UNITS = jnp.array([jnp.pi / 4, 2.0, 2.0, 0.4])  # what a size of 1 means: 45 degrees, two pixels, 40 percent

draw = np.random.default_rng(0)
digits = load_digits()
order = draw.permutation(len(digits.target))
images, labels = digits.images[order] / 16, digits.target[order]
steps = jnp.stack(jnp.meshgrid(jnp.arange(SIDE), jnp.arange(SIDE), indexing="ij")) - (SIDE - 1) / 2


def changed(image, amounts):
    """One image, turned, shifted and stretched."""
    turn, across, down, stretch = amounts * UNITS
    c, s = jnp.cos(turn), jnp.sin(turn)
    place = jnp.einsum("ij,jkl->ikl", jnp.array([[c, -s], [s, c]]), steps) * (1 + stretch)
    place = place + jnp.array([down, across])[:, None, None] + (SIDE - 1) / 2
    return map_coordinates(image, place, order=1)


many = jax.jit(jax.vmap(changed))
turned = np.zeros((len(labels), 4))
turned[:, 0] = draw.uniform(-40 / 45, 40 / 45, len(labels))
in_use = np.asarray(many(jnp.asarray(images), jnp.asarray(turned)))
train, trusted, test = np.split(np.arange(len(labels)), [500, 800])
copied = np.repeat(train, COPIES)
data = Rows(
    lower={
        "image": images[copied],
        "t": labels[copied],
        "luck": draw.uniform(-1, 1, (len(copied), 4)),  # drawn once: which way a row is changed
    },
    upper={"image": in_use[trusted], "t": labels[trusted]},
)


def entropy(y, images, t):
    scores = jax.nn.log_softmax(images.reshape(len(t), -1) @ y["w"] + y["b"])
    return -jnp.mean(jnp.take_along_axis(scores, t[:, None], axis=1))


def objective(y, images, t):
    return entropy(y, images, t) + RIDGE * (jnp.sum(y["w"] ** 2) + jnp.sum(y["b"] ** 2))


def lower(x, y, batch):
    return objective(y, jax.vmap(changed)(batch["image"], x * batch["luck"]), batch["t"])


def upper(x, y, batch):
    return entropy(y, batch["image"], batch["t"])


x0, y0 = jnp.full(4, 0.3), {"w": jnp.zeros((SIDE**2, 10)), "b": jnp.zeros(10)}
problem, path = Problem(upper, lower, data=data), [(0, x0)]
result = minimize(
    problem,
    x0,
    y0,
    ProxSABA(batch=100),
    steps=STEPS,
    every=STEPS // 20,
    callbacks=[lambda row, snapshot: path.append((row["step"], snapshot.state.x))],
    throw=False,
)


def accuracy(x):
    """On turned rows, of a classifier that was trained with changes of these sizes."""
    rows = problem.lower_data
    seen, slope = many(rows["image"], x * rows["luck"]), jax.grad(objective)

    def step(_, y):
        return jax.tree.map(lambda leaf, d: leaf - 0.3 * d, y, slope(y, seen, rows["t"]))

    y = jax.jit(lambda y: jax.lax.fori_loop(0, 500, step, y))(y0)
    scores = in_use[test].reshape(len(test), -1) @ np.asarray(y["w"]) + np.asarray(y["b"])
    return np.mean(np.argmax(scores, axis=1) == labels[test])


scores = {"no changes": accuracy(0 * x0), "all of size 0.3": accuracy(x0), "learned": accuracy(result.x)}
print(", ".join(f"{name}: {value:.3f}" for name, value in scores.items()))
print(", ".join(f"{kind} {abs(size):.2f}" for kind, size in zip(KINDS, result.x, strict=True)))
canvas = figure(9.5, 3.6)
left, right = canvas.subfigures(1, 2, width_ratios=(1.5, 1))
axes = left.subplots()
for kind, colour, sizes in zip(KINDS, (BLUE, GREY, ORANGE, "black"), np.abs([x for _, x in path]).T, strict=True):
    axes.plot([step for step, _ in path], sizes, color=colour, label=kind)
axes.axhline(40 / 45, color=BLUE, ls=":", lw=1)
axes.set(title="Sizes of changes (dotted: turns in use)", xlabel="step", ylim=(0, None))
axes.legend(ncols=2)
for row, cells in zip((np.flatnonzero(labels == digit)[0] for digit in (2, 4, 7)), right.subplots(3, 4), strict=True):
    for cell, luck in zip(cells, (-1.0, -0.4, 0.4, 1.0), strict=True):
        picture(cell, changed(jnp.asarray(images[row]), result.x * luck * jnp.array([1.0, 0.3, -0.5, 0.2])))
right.suptitle("Digits as the classifier sees them", fontsize=10)
save(canvas, given)
