r"""Hyper-cleaning as in the paper

40 % of the labels of a digits data set are wrong. The upper level chooses a weight $\sigma(x_i)$ for each row so that
a softmax regression on the weighted rows does well on 300 trusted rows. The regularizer of the paper, $-\gamma \sum_i
\min(|x_i|, a)$, is nonconvex: it pushes every weight away from 1/2, to a decision. With the step size of the paper
nothing moves in 50 steps; the default solver, which chooses its own, cleans.
"""

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import NegativeCappedL1, datasets, minimize, paper_solver
from proxbi.cleaning import hyper_cleaning
from proxbi.cleaning.problem import lower_smoothness
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
TRAIN, TRUSTED, RIDGE = (300, 150, 1e-2) if given.small else (1000, 300, 1e-2)

rows = datasets.digits()
rows = rows._replace(features=np.asarray(rows.features, float))
order = np.random.default_rng(0).permutation(len(rows.labels))
clean, trusted, test = (rows.take(part) for part in np.split(order, [TRAIN, TRAIN + TRUSTED]))
noisy = clean._replace(labels=datasets.symmetric_noise(clean.labels, 0.4, 0))
wrong = noisy.labels != clean.labels

problem = hyper_cleaning(noisy, trusted, RIDGE, NegativeCappedL1(0.1 / TRAIN, 5.0))
x0, y0 = jnp.zeros(TRAIN), jnp.zeros((10, rows.features.shape[1]))
alpha = 1 / lower_smoothness(noisy, RIDGE)
paper = paper_solver("proximal BiO-AIDm", alpha=alpha, beta=0.5, eta=0.9, T=20)
runs = {
    "step size of the paper, 50 steps": minimize(problem, x0, y0, paper, steps=50),
    "default solver": minimize(problem, x0, y0, steps=100),
}


def accuracy(y):
    return float(np.mean(np.argmax(test.features @ np.asarray(y).T, axis=1) == test.labels))


canvas = figure(9, 3.6)
panels = canvas.subplots(1, 3, width_ratios=[1.2, 1.2, 1])
for axes, (name, result) in zip(panels, runs.items(), strict=False):
    print(name, result)
    weights = np.asarray(jax.nn.sigmoid(result.x))
    bins = np.linspace(0, 1, 31)
    axes.hist(
        [weights[~wrong], weights[wrong]],
        bins,
        stacked=True,
        color=[BLUE, ORANGE],
        label=["right labels", "wrong labels"],
    )
    axes.set(title=name, xlabel="weight of the row", ylabel="rows")
    axes.legend(loc="upper center")
scores = {
    "as given": accuracy(runs["step size of the paper, 50 steps"].y),
    "cleaned": accuracy(runs["default solver"].y),
}
bars = panels[2].bar(list(scores), list(scores.values()), color=[GREY, BLUE], width=0.6)
panels[2].bar_label(bars, fmt="%.3f")
panels[2].set(title="Accuracy on new rows", ylim=(0.5, 1))
panels[2].grid(visible=False)
save(canvas, given)
