"""Dataset distillation: ten images that teach like a thousand

The upper level draws ten images, one for each digit, with pixels in $[0, 1]$. The lower level is a softmax regression
trained on these ten alone. They are drawn such that it does well on 1,000 real images. (Wang et al., *Dataset
distillation*, 2018.)
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from proxbi import Box, Problem, minimize
from shared import BLUE, GREEN, GREY, figure, options, picture, save

given = options(__doc__)
ROWS, STEPS = (200, 40) if given.small else (1000, 300)
RIDGE = 1e-3

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
images, labels = images[order] / 16, labels[order]
test_images, test_labels = images[ROWS:], labels[ROWS:]
images, labels = images[:ROWS], labels[:ROWS]
data = {"Z": jnp.asarray(images), "labels": jnp.asarray(labels)}


def cross_entropy(scores, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1))


def scores(y, Z):
    return Z @ y["weights"] + y["bias"]


def lower(x, y, data):  # ten images, one of each class
    return cross_entropy(scores(y, x), jnp.arange(10)) + RIDGE * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y))


def upper(x, y, data):
    return cross_entropy(scores(y, data["Z"]), data["labels"])


means = jnp.stack([data["Z"][labels == digit].mean(axis=0) for digit in range(10)])
first = np.array([np.flatnonzero(labels == digit)[0] for digit in range(10)])
y0 = {"weights": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
problem = Problem(upper, lower, Box(0.0, 1.0), data)
result = minimize(problem, data["Z"][first], y0, steps=STEPS, throw=False)
print(result)


def accuracy(x):  # of the regression on the images x, on new images
    y = minimize(
        Problem(lambda x, y: jnp.sum(x * 0) + jnp.sum(y["bias"]), lambda _, y: lower(x, y, None), Box(0, 1)),
        x,
        y0,
        steps=1,
        throw=False,
    ).y
    return float(np.mean(np.argmax(scores(y, test_images), axis=1) == test_labels))


results = {
    "ten real\nimages": accuracy(data["Z"][first]),
    "the mean\nof each class": accuracy(means),
    "ten distilled\nimages": accuracy(result.x),
}
print(results)
canvas = figure(9.5, 3.4)
left, right = canvas.subfigures(1, 2, width_ratios=[2, 1])
grid = left.subplots(2, 5)
for digit, axes in enumerate(grid.flat):
    picture(axes, np.asarray(result.x[digit]).reshape(8, 8), str(digit), vmin=0, vmax=1)
left.suptitle("What a regression should see to learn digits", fontsize=11.5, fontweight="bold", x=0.02, ha="left")
axes = right.subplots()
bars = axes.bar(list(results), list(results.values()), color=[GREY, GREEN, BLUE], width=0.65)
axes.bar_label(bars, fmt="%.3f")
axes.set(title="Accuracy on new images", ylim=(0, 1))
axes.tick_params(axis="x", labelsize=8.5)
axes.grid(visible=False)
save(canvas, given)
