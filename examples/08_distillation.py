"""Dataset distillation: ten images instead of a thousand

The upper level draws ten images, one for each digit, with pixels in $[0, 1]$. The lower level is a softmax regression
trained on these ten alone. They are drawn such that it does well on 1,000 real images. (Wang et al., *Dataset
distillation*, 2018.) With ten distilled images, it comes close to a regression on all 1,000 real ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from proxbi import Box, Problem, minimize, value_and_hypergradient
from shared import BLUE, GREEN, GREY, ORANGE, figure, options, picture, save

given = options(__doc__)
ROWS, STEPS = (200, 10) if given.small else (1000, 60)
RIDGE = 1e-2

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
images, labels = images[order] / 16, labels[order]
data = {"Z": jnp.asarray(images[:ROWS]), "label": jnp.asarray(labels[:ROWS])}


def scores(y, Z):
    return Z @ y["weights"] + y["bias"]


def cross_entropy(scores, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1))


def lower(x, y, data):  # x: ten images, one of each class
    return cross_entropy(scores(y, x), jnp.arange(10)) + RIDGE * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y))


def upper(x, y, data):
    return cross_entropy(scores(y, data["Z"]), data["label"])


problem = Problem(upper, lower, Box(0.0, 1.0), data)
real = data["Z"][np.array([np.flatnonzero(labels[:ROWS] == digit)[0] for digit in range(10)])]
means = jnp.stack([data["Z"][labels[:ROWS] == digit].mean(axis=0) for digit in range(10)])
y0 = {"weights": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
result = minimize(problem, real, y0, steps=STEPS)
print(result)


@jax.jit
def taught(x):  # the lower solution for images x
    return value_and_hypergradient(problem, x, y0, accuracy=1e-3)[2].y


def accuracy(x):  # on new images
    return float(np.mean(np.argmax(scores(taught(x), images[ROWS:]), axis=1) == labels[ROWS:]))


results = {
    "ten\nreal": accuracy(real),
    "class\nmeans": accuracy(means),
    "ten\ndistilled": accuracy(result.x),
    f"all {ROWS:,}\nreal ones": LogisticRegression(max_iter=1000)
    .fit(images[:ROWS], labels[:ROWS])
    .score(images[ROWS:], labels[ROWS:]),
}
print(results)
canvas = figure(9.5, 4.4)
left, right = canvas.subfigures(1, 2, width_ratios=[1.3, 1])
grid = left.subplots(4, 5)
for digit in range(10):
    above, below = grid[2 * (digit // 5) : 2 * (digit // 5) + 2, digit % 5]
    picture(above, real[digit].reshape(8, 8), vmin=0, vmax=1)
    picture(below, result.x[digit].reshape(8, 8), vmin=0, vmax=1)
for row in range(4):
    grid[row, 0].set_ylabel("distilled" if row % 2 else "start")
left.suptitle("What a regression should see to learn digits", fontsize=11.5, fontweight="bold", x=0.02, ha="left")
axes = right.subplots()
bars = axes.bar(list(results), list(results.values()), color=[GREY, GREEN, BLUE, ORANGE], width=0.65)
axes.bar_label(bars, fmt="%.3f")
axes.set(title="Accuracy on new images", ylim=(0, 1))
axes.tick_params(axis="x", labelsize=8.5)
axes.grid(visible=False)
save(canvas, given)
