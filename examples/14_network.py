r"""Minibatches: cleaning labels while a network trains

A small network is trained on digits of which half of the labels are wrong. The upper level gives every row a weight
$\sigma(x_i)$, judged by 200 trusted rows. Both levels see batches: `ProxSOBA` moves the network by Adam, an adjoint,
and the weights of the rows in the batch, in one loop. Nothing is unrolled, so memory does not grow with the number of
steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from proxbi import Box, Problem, ProxSOBA, Rows, datasets, minimize
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
TRAIN, TRUSTED, HIDDEN, STEPS = (300, 100, 16, 600) if given.small else (1200, 200, 64, 6000)

rows = datasets.digits()
order = np.random.default_rng(0).permutation(len(rows.labels))
clean, trusted, test = (rows.take(part) for part in np.split(order, [TRAIN, TRAIN + TRUSTED]))
labels = datasets.symmetric_noise(clean.labels, 0.5, 0)
wrong = labels != clean.labels


def as_rows(part, labels):
    return {"z": jnp.asarray(np.asarray(part.features, float)), "label": jnp.asarray(labels)}


def network(y, z):
    return jnp.tanh(z @ y["first"]) @ y["second"] + y["bias"]


def losses(y, batch):
    return -jnp.take_along_axis(jax.nn.log_softmax(network(y, batch["z"])), batch["label"][:, None], axis=1)[:, 0]


def lower(x, y, batch):  # batch.index are the numbers of the rows in it
    return jnp.mean(jax.nn.sigmoid(x[batch.index]) * losses(y, batch)) + 1e-3 * sum(
        jnp.sum(leaf**2) for leaf in jax.tree.leaves(y)
    )


def upper(x, y, batch):
    return jnp.mean(losses(y, batch))


keys = jax.random.split(jax.random.key(0), 2)
width = rows.features.shape[1]
y0 = {
    "first": jax.random.normal(keys[0], (width, HIDDEN)) / np.sqrt(width),
    "second": jax.random.normal(keys[1], (HIDDEN, 10)) / np.sqrt(HIDDEN),
    "bias": jnp.zeros(10),
}


def trained(step_size):
    curve = []

    def measure(row, snapshot):
        guess = np.argmax(network(snapshot.state.y, test.features), axis=1)
        curve.append((row["step"], np.mean(guess == test.labels)))

    problem = Problem(
        upper, lower, Box(-4.0, 4.0), Rows(upper=as_rows(trusted, trusted.labels), lower=as_rows(clean, labels))
    )
    solver = ProxSOBA(step_size, 0.02, batch=64, damping=0.1, optimizer=optax.adam(2e-3), certificate_rows=TRAIN)
    result = minimize(problem, jnp.zeros(TRAIN), y0, solver, steps=STEPS, callbacks=[measure], throw=False)
    return result, np.array(curve)


_, plain_curve = trained(1e-9)  # so short that all weights stay equal
result, curve = trained(300.0)
print(result)

canvas = figure(9.5, 3.8)
left, right = canvas.subplots(1, 2, width_ratios=[1.4, 1])
left.plot(*plain_curve.T, color=GREY, label="all rows alike")
left.plot(*curve.T, color=BLUE, label="weights of rows learned on the way")
left.set(xlabel="step", ylabel="accuracy on new rows", title="Half of the labels are wrong")
left.legend(loc="lower right")
weights = np.asarray(jax.nn.sigmoid(result.x))
right.hist(
    [weights[~wrong], weights[wrong]],
    np.linspace(0, 1, 26),
    color=[BLUE, ORANGE],
    label=["right labels", "wrong labels"],
)
right.set(xlabel="weight", ylabel="rows", title="The weights at the end")
right.legend(loc="upper center")
save(canvas, given)
