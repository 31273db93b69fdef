"""A small convolutional network on MNIST with wrong labels, cleaned by a weight for each row.

    python benchmarks/stochastic_network.py [--rows 5000] [--trusted 1000] [--noise 0.4] [--epochs 30] [--data FOLDER]

Lower level: the network, trained by Adam on rows weighted by sigmoid(x_i). Upper level: its loss on trusted rows. Three
networks see the same number of batches: one without weights (of its epochs the best by the trusted rows counts), one
cleaned, one trained on the rows whose labels are right. "Gap closed" is how far the second gets from the first to the
third in test accuracy.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from proxbi import Box, Problem, ProxSOBA, Rows, minimize
from proxbi.datasets import mnist

CLASSES, SIDE, BATCH = 10, 28, 64
RIDGE, BOUND = 1e-4, 4.0
DAMPING = 1.0  # added to g_yy, which is not positive definite
ADAM = optax.adam(1e-3)


def network(y: PyTree, images: Array) -> Array:
    """Two convolutions of stride 2 and a linear layer."""
    hidden = images.reshape(-1, SIDE, SIDE, 1)
    for name in ("first", "second"):
        hidden = jax.nn.relu(convolved(hidden, y[name]["kernel"]) + y[name]["bias"])
    return hidden.reshape(len(hidden), -1) @ y["last"]["kernel"] + y["last"]["bias"]


def convolved(images: Array, kernel: Array) -> Array:
    """With stride 2, as one product of patches: in loops on CPUs XLA's own convolution takes several times as long."""
    size, reach = kernel.shape[0], images.shape[1] - kernel.shape[0] + 1
    patches = [images[:, i : i + reach : 2, j : j + reach : 2] for i in range(size) for j in range(size)]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def first_weights(seed: int) -> PyTree:
    shapes = {"first": (4, 4, 1, 8), "second": (3, 3, 8, 16), "last": (6 * 6 * 16, CLASSES)}
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    made = {}
    for key, (name, shape) in zip(keys, shapes.items(), strict=True):
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        made[name] = {"kernel": scale * jax.random.normal(key, shape), "bias": jnp.zeros(shape[-1])}
    return made


def entropy(y: PyTree, batch: Any) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(network(y, batch["z"]), batch["t"])


def upper(x: Array, y: PyTree, batch: Any) -> Array:
    return jnp.mean(entropy(y, batch))


def lower(x: Array, y: PyTree, batch: Any) -> Array:
    size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y))
    return jnp.mean(2 * jax.nn.sigmoid(x[batch.index]) * entropy(y, batch)) + RIDGE * size


@jax.jit
def accuracy(y: PyTree, images: Array, labels: Array) -> Array:
    return jnp.mean(jnp.argmax(network(y, images), axis=1) == labels)


def plain(rows: dict[str, Array], trusted: dict[str, Array], steps: int, looks: int) -> PyTree:
    """Adam without weights; of `looks` moments the best by the trusted rows."""

    @jax.jit
    def advance(carry: Any, first: Array) -> Any:
        def step(t: Array, carry: Any) -> Any:
            y, state = carry
            index = jax.random.randint(jax.random.key(t), (BATCH,), 0, len(rows["t"]))
            batch = {name: leaf[index] for name, leaf in rows.items()}
            gradient = jax.grad(lambda y: jnp.mean(entropy(y, batch)))(y)
            updates, state = ADAM.update(gradient, state, y)
            return optax.apply_updates(y, updates), state

        return jax.lax.fori_loop(first, first + steps // looks, step, carry)

    y = first_weights(0)
    carry, best, score = (y, ADAM.init(y)), y, -1.0
    for look in range(looks):
        carry = advance(carry, jnp.int32(look * (steps // looks)))
        now = float(accuracy(carry[0], trusted["z"], trusted["t"]))
        best, score = (carry[0], now) if now > score else (best, score)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--trusted", type=int, default=1_000)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--data")
    asked = parser.parse_args()
    data, draw = mnist(asked.data), np.random.default_rng(15)
    order = draw.permutation(len(data.train.labels))[: asked.rows + asked.trusted]
    images, truth = data.train.features[order].astype(np.float32) / 255, data.train.labels[order]
    wrong = draw.random(len(order)) < asked.noise
    wrong[asked.rows :] = False
    labels = np.where(wrong, (truth + draw.integers(1, CLASSES, len(order))) % CLASSES, truth).astype(np.int32)
    parts = {"lower": slice(asked.rows), "upper": slice(asked.rows, None)}
    levels = {name: {"z": jnp.asarray(images[part]), "t": jnp.asarray(labels[part])} for name, part in parts.items()}
    right = {name: leaf[~wrong[: asked.rows]] for name, leaf in levels["lower"].items()}
    steps = asked.epochs * asked.rows // BATCH
    test = jnp.asarray(data.test.features.astype(np.float32) / 255), jnp.asarray(data.test.labels)

    found = {}
    for name, rows in (("no cleaning", levels["lower"]), ("right labels only", right)):
        begun = time.perf_counter()
        found[name] = float(accuracy(plain(rows, levels["upper"], steps, asked.epochs), *test))
        print(f"{name:20} {found[name]:.4f}   {time.perf_counter() - begun:.0f} s", flush=True)

    problem = Problem(upper, lower, Box(-BOUND, BOUND), Rows(**levels, classes=CLASSES))
    solver = ProxSOBA(damping=DAMPING, optimizer=ADAM, batch=BATCH, certificate_rows=asked.rows)
    begun = time.perf_counter()

    def look(row: dict[str, Any], snapshot: Any) -> None:
        x, y = np.asarray(snapshot.state.x), snapshot.state.y
        low, bad, scale = x < 0, wrong[: asked.rows], snapshot.state.scale
        held = float(accuracy(y, levels["upper"]["z"], levels["upper"]["t"]))
        print(
            f"  {row['step']:6d} test {float(accuracy(y, *test)):.4f}, trusted {held:.4f}, weights below half: "
            f"{np.mean(low[bad]):.0%} of wrong, {np.mean(low[~bad]):.0%} of right labels, "
            f"step sizes {float(scale.outer):.0f} and {float(scale.adjoint):.3f}",
            flush=True,
        )

    x0 = jnp.zeros(asked.rows)
    result = minimize(
        problem, x0, first_weights(0), solver, steps=steps, every=steps // 6, callbacks=[look], throw=False
    )
    cleaned = float(accuracy(result.state.state.y, *test))
    closed = (cleaned - found["no cleaning"]) / (found["right labels only"] - found["no cleaning"])
    print(f"{'cleaned':20} {cleaned:.4f}   {time.perf_counter() - begun:.0f} s   gap closed: {closed:.0%}")


if __name__ == "__main__":
    main()
