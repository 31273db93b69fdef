"""Meta-Weight-Net: a small network says how much a row counts

Some digits are rare in training, and as common as the others in use. The weight of a row is a function of its loss
alone, a network with 16 hidden units whose weights are $x$. The lower level trains a classifier on weighted rows, the
upper level asks that it does well on ten trusted rows of each digit. (Shu et al., *Meta-Weight-Net*, 2019.)
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from proxbi import Problem, ProxSABA, Rows, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
STEPS, HIDDEN, RIDGE, TRUSTED = (600 if given.small else 8000), 16, 1e-3, 10

draw = np.random.default_rng(0)
digits = load_digits()
features, labels = np.c_[digits.data / 16, np.ones(len(digits.data))], digits.target
order = draw.permutation(len(labels))
rank = np.array([np.sum(labels[order[:k]] == labels[i]) for k, i in enumerate(order)])  # within its class
trusted = order[rank < TRUSTED]
common = np.where(labels[order] < 5, 100, 5)  # rows of each class: twenty times more of 0 to 4
train = order[(rank >= TRUSTED) & (rank < TRUSTED + common)]
test = order[rank >= TRUSTED + 100]


def rows(which):
    return {"z": jnp.asarray(features[which]), "t": jnp.asarray(labels[which])}


def entropy(y, batch):
    scores = jax.nn.log_softmax(batch["z"] @ y)
    return -jnp.take_along_axis(scores, batch["t"][:, None], axis=1)[:, 0]


def weight(x, loss):  # between 0 and 2; 1 where the network says nothing
    hidden = jnp.tanh(loss[:, None] * x["slope"] + x["shift"])
    return 2 * jax.nn.sigmoid(hidden @ x["out"])


def lower(x, y, batch):
    loss = entropy(y, batch)
    pulled = loss + RIDGE * jnp.sum(y**2)  # both are weighted, so that only ratios of weights matter
    return jnp.mean(weight(x, jax.lax.stop_gradient(loss)) * pulled)


def upper(x, y, batch):
    return jnp.mean(entropy(y, batch))


keys = jax.random.split(jax.random.key(0), 2)
x0 = {
    "slope": jax.random.normal(keys[0], (HIDDEN,)),
    "shift": jax.random.normal(keys[1], (HIDDEN,)),
    "out": jnp.zeros(HIDDEN),
}
problem = Problem(upper, lower, data=Rows(upper=rows(trusted), lower=rows(train)))
y0 = jnp.zeros((features.shape[1], 10))
result = minimize(problem, x0, y0, ProxSABA(batch=50), steps=STEPS, throw=False)


def plain(y):  # the same classifier where all rows count alike
    return jax.lax.fori_loop(0, 3000, lambda _, y: y - 0.3 * problem.grad_lower(x0, y), y)


def recalls(y):
    right = np.argmax(features[test] @ np.asarray(y), axis=1) == labels[test]
    return [right[labels[test] == digit].mean() for digit in range(10)]


before, after = recalls(plain(y0)), recalls(result.y)
print(f"mean recall: {np.mean(before):.3f} with equal weights, {np.mean(after):.3f} with learned ones")
losses = np.asarray(entropy(result.y, rows(train)))
canvas = figure(9.5, 3.6)
left, right = canvas.subplots(1, 2)
line = jnp.linspace(0, max(losses.max(), 2.0), 200)
left.plot(line, weight(result.x, line), color=BLUE)
rare = labels[train] >= 5
for which, colour, name in ((~rare, GREY, "0 to 4, common"), (rare, ORANGE, "5 to 9, rare")):
    left.plot(losses[which], weight(result.x, losses)[which], "o", color=colour, alpha=0.5, ms=4, label=name)
left.set(title="The learned weight of a row", xlabel="its loss", ylabel="weight", ylim=(0, 2.05))
left.legend()
place = np.arange(10)
right.bar(place - 0.2, before, 0.4, color=GREY, label="equal weights")
right.bar(place + 0.2, after, 0.4, color=BLUE, label="learned weights")
right.set(title="Test rows of each digit that are right", xticks=place, xlabel="digit", ylim=(0, 1.25))
right.legend(ncols=2, loc="upper center")
save(canvas, given)
