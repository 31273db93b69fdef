r"""A Lasso on the lower level

The lower level is a Lasso: smooth loss plus $\lVert e^x \cdot y\rVert_1$, given by its prox as `lower_regularizer`.
With one penalty, the validation loss has a kink wherever a coefficient enters or leaves; it is drawn as a function of
the penalty, with the point that the solver returns. With one penalty for each coefficient, most of those that do not
matter are switched off and the others are not shrunk.
"""

import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import Lasso

from proxbi import L1, Box, Problem, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
ROWS, FEATURES, GRID = (40, 12, 60) if given.small else (80, 40, 300)

draw = np.random.default_rng(3)
truth = np.where(np.arange(FEATURES) < 6, np.array([3.0, -2.5, 2.0, -1.5, 1.0, -0.7] + [0.0] * (FEATURES - 6)), 0.0)
Z = draw.normal(size=(2, ROWS, FEATURES))
t = Z @ truth + draw.normal(size=(2, ROWS))
data = {"Z": jnp.asarray(Z[0]), "t": jnp.asarray(t[0]), "Z_judge": jnp.asarray(Z[1]), "t_judge": jnp.asarray(t[1])}


def smooth(x, y, data):
    return jnp.mean((data["Z"] @ y - data["t"]) ** 2) / 2


def upper(x, y, data):
    return jnp.mean((data["Z_judge"] @ y - data["t_judge"]) ** 2) / 2


def problem(penalties):
    return Problem(upper, smooth, Box(-5.0, 1.0), data, lower_regularizer=lambda x: L1(penalties(x)))


one = minimize(problem(lambda x: jnp.exp(x) * jnp.ones(FEATURES)), jnp.array(-2.5), jnp.zeros(FEATURES), throw=False)
many = minimize(problem(jnp.exp), jnp.full(FEATURES, one.x), one.y, throw=False)
print(one, many, sep="\n")

logs = np.linspace(-4.5, 0.5, GRID)
fits = [Lasso(np.exp(x), fit_intercept=False, tol=1e-8, max_iter=100_000).fit(Z[0], t[0]).coef_ for x in logs]
losses = [np.mean((Z[1] @ coef - t[1]) ** 2) / 2 for coef in fits]
support = np.array([np.sum(coef != 0) for coef in fits])

canvas = figure(9.5, 3.8)
left, right = canvas.subplots(1, 2)
left.plot(logs, losses, color=GREY, label="validation loss (scikit-learn's Lasso)")
changes = np.flatnonzero(np.diff(support))
left.plot(logs[changes], np.array(losses)[changes], "|", color="black", ms=9, label="a coefficient enters or leaves")
left.plot(float(one.x), float(one.objective), "*", color=ORANGE, ms=16, label=f"proxbi: {one.status.name}")
left.set(
    xlabel="log penalty", ylabel="loss on held-out rows", title="One penalty", ylim=(None, 1.15 * np.median(losses))
)
left.legend(fontsize=8.5)
shown = min(FEATURES, 20)
place = np.arange(shown)
right.plot(place, truth[:shown], "_", color="black", ms=13, mew=2, label="truth")
right.plot(
    place - 0.12, one.y[:shown], "o", color=ORANGE, ms=5, label=f"one penalty ({int(np.sum(one.y != 0))} nonzero)"
)
right.plot(
    place + 0.12, many.y[:shown], "D", color=BLUE, ms=5, label=f"one for each ({int(np.sum(many.y != 0))} nonzero)"
)
right.set(xlabel="coefficient", title="The coefficients", xticks=place[::4])
right.legend(fontsize=8.5)
save(canvas, given)
