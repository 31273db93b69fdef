"""Learned filters for deconvolution

A signal was blurred and is noisy. The lower level restores it: the result must fit the data, and pays for what four
filters let through. Which filters? The upper level learns them from signals whose truth is known. It starts from
the best total variation (one filter: the difference of neighbours, its strength tuned) and three weak random filters.
(Kunisch and Pock, *A bilevel optimization approach for parameter learning in variational models*, 2013.)
"""

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import Problem, minimize, value_and_hypergradient
from shared import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, options, save

given = options(__doc__)
SIGNALS, LENGTH, STEPS = (4, 48, 10) if given.small else (12, 96, 40)
NOISE, SMOOTHING, FILTERS, WIDTH = 0.15, 0.05, 4, 5

draw = np.random.default_rng(0)
kernel = np.exp(-(np.linspace(-2, 2, 9) ** 2))
kernel /= kernel.sum()


def signals(number):  # waves, with jumps
    place = np.linspace(0, 1, LENGTH)
    jumps = 1.5 * draw.normal(size=(number, 5, 1)) * (place > draw.uniform(0.1, 0.9, (number, 5, 1)))
    phases = place * draw.uniform(0.5, 2, (number, 1)) + draw.uniform(size=(number, 1))
    clean = jumps.sum(axis=1) + 0.7 * draw.normal(size=(number, 1)) * np.sin(2 * np.pi * phases)
    seen = np.asarray(blur(jnp.asarray(clean))) + NOISE * draw.normal(size=clean.shape)
    return {"clean": jnp.asarray(clean), "seen": jnp.asarray(seen)}


def filtered(filters, y):  # the ends of y are repeated, so that what comes out is as long as y
    y = jnp.pad(y, ((0, 0), (filters.shape[1] // 2,) * 2), mode="edge")
    windows = jnp.stack([y[:, k : y.shape[1] - filters.shape[1] + 1 + k] for k in range(filters.shape[1])])
    return jnp.tensordot(filters, windows, 1)


def blur(y):
    return filtered(jnp.asarray(kernel)[None], y)[0]


def lower(x, y, data):
    fit = jnp.sum((blur(y) - data["seen"]) ** 2) / (2 * NOISE**2)
    return fit + jnp.sum(jnp.sqrt(filtered(x, y) ** 2 + SMOOTHING**2)) + 1e-3 * jnp.sum(y**2)


def upper(x, y, data):
    return jnp.mean((y - data["clean"]) ** 2)


@jax.jit
def restored(x, data):  # the lower solution
    return value_and_hypergradient(Problem(upper, lower, data=data), x, data["seen"], accuracy=1e-2)[2].y


def error(y, data):
    return float(jnp.sqrt(jnp.mean((y - data["clean"]) ** 2)))


data, new = signals(SIGNALS), signals(SIGNALS)
difference = jnp.zeros((FILTERS, WIDTH)).at[0, 2:4].set(jnp.array([-1.0, 1.0]))
strengths = np.geomspace(0.3, 10, 8)
strength = min(strengths, key=lambda s: error(restored(s * difference, data), data))
x0 = strength * difference + jnp.zeros((FILTERS, WIDTH)).at[1:].set(0.3 * draw.normal(size=(FILTERS - 1, WIDTH)))
result = minimize(Problem(upper, lower, data=data), x0, data["seen"], steps=STEPS, throw=False)
print(result)

before, after = restored(strength * difference, new), restored(result.x, new)
canvas = figure(9.5, 4)
left, right = canvas.subplots(1, 2, width_ratios=[2.4, 1])
left.plot(new["seen"][0], ".", color=GREY, ms=5, label=f"seen (error {error(new['seen'], new):.3f})")
left.plot(new["clean"][0], color="black", lw=1.2, label="truth")
left.plot(before[0], color=ORANGE, ls="--", label=f"total variation ({error(before, new):.3f})")
left.plot(after[0], color=BLUE, label=f"learned filters ({error(after, new):.3f})")
left.set(title=f"A new signal (errors over {SIGNALS} new ones)", xlabel="place")
left.legend(fontsize=8.5)
size = float(jnp.max(jnp.abs(result.x)))
for row, colour in enumerate((BLUE, GREEN, PURPLE, ORANGE)):
    right.axhline(-2.2 * row, color="#c9ccd1", lw=0.8, zorder=0)
    right.plot(range(WIDTH), result.x[row] / size - 2.2 * row, marker="o", ms=5, color=colour)
right.set(title="The learned filters", xticks=range(WIDTH), yticks=[])
right.spines["left"].set_visible(False)
right.grid(visible=False)
save(canvas, given)
