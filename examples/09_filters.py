"""Learned filters for deconvolution

A signal was blurred and is noisy. The lower level reconstructs it: it must fit the data, and pays for what five
filters let through. Which filters? The upper level learns them from signals whose truth is known. It starts from
differences of neighbours (total variation). (Kunisch and Pock, *A bilevel optimization approach for parameter
learning in variational models*, 2013.)
"""

import jax.numpy as jnp
import numpy as np

from proxbi import Problem, minimize
from shared import BLUE, GREEN, GREY, ORANGE, figure, options, save

given = options(__doc__)
SIGNALS, LENGTH, STEPS = (4, 48, 30) if given.small else (16, 96, 150)
NOISE, SMOOTHING = 0.15, 0.05

draw = np.random.default_rng(0)
kernel = np.exp(-(np.linspace(-2, 2, 9) ** 2))
kernel /= kernel.sum()


def signals(number):  # pieces of waves, with jumps between them
    place = np.linspace(0, 1, LENGTH)
    jumps = np.cumsum(
        (np.abs(place[None, :, None] - draw.uniform(0, 1, (number, 1, 5))) < 0.5 / LENGTH)
        * draw.normal(size=(number, 1, 5)),
        axis=1,
    )
    waves = draw.normal(size=(number, 1)) * np.sin(
        2 * np.pi * (place * draw.uniform(0.5, 2, (number, 1)) + draw.uniform(size=(number, 1)))
    )
    clean = 1.5 * jumps.sum(axis=2) + 0.7 * waves
    blurred = np.stack([np.convolve(np.pad(one, 4, mode="edge"), kernel, "valid") for one in clean])
    return jnp.asarray(clean), jnp.asarray(blurred + NOISE * draw.normal(size=blurred.shape))


def filtered(filters, y):
    width = filters.shape[1]
    windows = jnp.stack([y[:, k : y.shape[1] - width + 1 + k] for k in range(width)])
    return jnp.tensordot(filters, windows, 1)


def blur(y):
    return filtered(jnp.asarray(kernel)[None], jnp.pad(y, ((0, 0), (4, 4)), mode="edge"))[0]


def lower(x, y, data):
    fit = jnp.sum((blur(y) - data["seen"]) ** 2) / (2 * NOISE**2)
    return fit + jnp.sum(jnp.sqrt(filtered(x, y) ** 2 + SMOOTHING**2)) + 1e-3 * jnp.sum(y**2)


def upper(x, y, data):
    return jnp.mean((y - data["clean"]) ** 2)


def problem(clean, seen):
    return Problem(upper, lower, data={"clean": clean, "seen": seen})


clean, seen = signals(SIGNALS)
x0 = jnp.zeros((5, 5)).at[0, 2:4].set(jnp.array([-3.0, 3.0])).at[1:].set(jnp.asarray(0.3 * draw.normal(size=(4, 5))))
result = minimize(problem(clean, seen), x0, seen, steps=STEPS, throw=False)
print(result)

new_clean, new_seen = signals(4)


def restored(x):  # the lower solution on new signals
    return np.asarray(minimize(problem(new_clean, new_seen), x, new_seen, steps=1, throw=False).y)


before, after = restored(x0), restored(result.x)
errors = [float(jnp.sqrt(jnp.mean((each - new_clean) ** 2))) for each in (new_seen, before, after)]
canvas = figure(9.5, 3.8)
left, right = canvas.subplots(1, 2, width_ratios=[2.2, 1])
left.plot(new_seen[0], ".", color=GREY, ms=4, label=f"seen (error {errors[0]:.2f})")
left.plot(new_clean[0], color="black", lw=1, label="truth")
left.plot(before[0], color=ORANGE, ls="--", label=f"start: total variation and noise ({errors[1]:.2f})")
left.plot(after[0], color=BLUE, label=f"learned filters ({errors[2]:.2f})")
left.set(title="A new signal", xlabel="place")
left.legend(fontsize=8.5)
size = jnp.max(jnp.abs(result.x))
for row, colour in zip(range(5), (BLUE, ORANGE, GREEN, GREY, "black"), strict=True):
    right.plot(range(5), result.x[row] / size - 1.5 * row, marker="o", ms=4, color=colour)
    right.axhline(-1.5 * row, color="#c9ccd1", lw=0.8, zorder=0)
right.set(title="The filters", xticks=[], yticks=[])
right.spines[:].set_visible(False)
right.grid(visible=False)
save(canvas, given)
