r"""Hyper-cleaning as in the paper

40 % of the labels of 1,000 digits are wrong. The upper level chooses a weight $\sigma(x_i)$ for each row so that a
softmax regression on the weighted rows does well on 300 trusted rows. The regularizer of the paper, $-\gamma \sum_i
\min(|x_i|, a)$, is nonconvex: it pushes every weight away from 1/2, to a decision. With the step size of the paper,
$\beta = 0.5$, weights hardly move in 50 steps, and the wrong labels stay in the fit. The default solver chooses its own
step sizes, and cleans: it decides for or against each row. The fit is then as good as without wrong labels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import NegativeCappedL1, datasets, minimize, paper_solver
from proxbi.cleaning import hyper_cleaning
from proxbi.cleaning.problem import lower_smoothness
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
TRAIN, TRUSTED, STEPS = (300, 150, 40) if given.small else (1000, 300, 100)
RIDGE = 1e-2

rows = datasets.digits()
rows = rows._replace(features=np.asarray(rows.features, float))
order = np.random.default_rng(0).permutation(len(rows.labels))
clean, trusted, test = (rows.take(part) for part in np.split(order, [TRAIN, TRAIN + TRUSTED]))
noisy = clean._replace(labels=datasets.symmetric_noise(clean.labels, 0.4, 0))
wrong = noisy.labels != clean.labels

problem = hyper_cleaning(noisy, trusted, RIDGE, NegativeCappedL1(0.1 / TRAIN, 5.0))
x0, y0 = jnp.zeros(TRAIN), jnp.zeros((10, rows.features.shape[1]))
paper = paper_solver("proximal BiO-AIDm", alpha=1 / lower_smoothness(noisy, RIDGE), beta=0.5, eta=0.9, T=20)
runs = {
    "Step size of the paper": minimize(problem, x0, y0, paper, steps=50),
    "Default solver": minimize(problem, x0, y0, steps=STEPS, tol=1e-6),
}


def accuracy(y):  # on new rows
    return float(np.mean(np.argmax(test.features @ np.asarray(y).T, axis=1) == test.labels))


canvas = figure(9.5, 3.6)
first, second, last = canvas.subplots(1, 3, width_ratios=[1.2, 1.2, 1])
for axes, (name, result) in zip((first, second), runs.items(), strict=True):
    print(name, result)
    weights = np.asarray(jax.nn.sigmoid(result.x))
    axes.hist(
        [weights[~wrong], weights[wrong]],
        np.linspace(0, 1, 31),
        stacked=True,
        color=[BLUE, ORANGE],
        label=["right labels", "wrong labels"],
    )
    axes.set(title=name, xlabel="weight of a row", ylabel="rows")
    axes.set_xlim(0, 1)
second.legend(loc="upper center")
without = hyper_cleaning(clean, trusted, RIDGE, problem.regularizer)
fitted = minimize(without, jnp.full(TRAIN, 5.0), y0, paper, steps=50)  # all weights near 1, where they stay
scores = {
    "paper's\nstep": accuracy(runs["Step size of the paper"].y),
    "default\nsolver": accuracy(runs["Default solver"].y),
    "no wrong\nlabels": accuracy(fitted.y),
}
print(scores)
bars = last.bar(list(scores), list(scores.values()), color=[ORANGE, BLUE, GREY], width=0.6)
last.bar_label(bars, fmt="%.3f")
last.set(title="Accuracy on new rows", ylim=(0.8, 1))
last.grid(visible=False)
save(canvas, given)
