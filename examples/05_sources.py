"""How much to trust each source

Six sources deliver rows for one regression. Two are good, two are noisy, one measures something else, one is shifted.
The upper level gives them weights on a simplex, so that a fit to the weighted rows does well on a few rows that are
known to be good. The simplex makes weights exactly zero.
"""

import jax.numpy as jnp
import numpy as np

from proxbi import Problem, Simplex, minimize
from shared import BLUE, GREEN, GREY, ORANGE, figure, options, save

given = options(__doc__)
NAMES = ["good", "good too", "noisy", "noisier", "something else", "shifted"]
ROWS, FEATURES, GOOD = (40, 8, 20) if given.small else (200, 40, 60)

draw = np.random.default_rng(0)
truth, other = draw.normal(size=(2, FEATURES))
Z = draw.normal(size=(6, ROWS, FEATURES))
noise = np.array([0.3, 0.3, 1.5, 4.0, 0.3, 0.3])[:, None] * draw.normal(size=(6, ROWS))
t = Z @ truth + noise
t[4] = Z[4] @ other
t[5] += 6.0 * np.sign(Z[5, :, 0])
held_out, test = draw.normal(size=(GOOD, FEATURES)), draw.normal(size=(4000, FEATURES))
data = {"Z": jnp.asarray(Z), "t": jnp.asarray(t), "Z_good": jnp.asarray(held_out)}
data["t_good"] = jnp.asarray(held_out @ truth + 0.3 * draw.normal(size=GOOD))


def lower(x, y, data):
    each = jnp.mean((data["Z"] @ y - data["t"]) ** 2, axis=1)
    return jnp.sum(x * each) / 2 + 1e-3 * jnp.sum(y**2)


def upper(x, y, data):
    return jnp.mean((data["Z_good"] @ y - data["t_good"]) ** 2) / 2


equal = jnp.full(6, 1 / 6)
result = minimize(Problem(upper, lower, Simplex(), data), equal, jnp.zeros(FEATURES))
print(result)


def error(weights):  # of the fit to rows with these weights, on new rows
    scaled = np.sqrt(np.asarray(weights) / ROWS)[:, None]
    left, right = (scaled[..., None] * Z).reshape(-1, FEATURES), (scaled * t).ravel()
    y = np.linalg.solve(left.T @ left + 2e-3 * np.eye(FEATURES), left.T @ right)
    return np.mean((test @ (y - truth)) ** 2)


trusted = np.linalg.lstsq(held_out, np.asarray(data["t_good"]), rcond=None)[0]
errors = {
    "all alike": error(equal),
    "good rows only": np.mean((test @ (trusted - truth)) ** 2),
    "weights chosen": error(result.x),
}
canvas = figure(9, 3.6)
left, right = canvas.subplots(1, 2, width_ratios=[1.5, 1])
bars = left.barh(NAMES[::-1], np.asarray(result.x)[::-1], color=[ORANGE, ORANGE, GREY, GREY, BLUE, BLUE])
left.bar_label(bars, [f"{weight:.2f}" if weight else "0" for weight in np.asarray(result.x)[::-1]], padding=3)
left.axvline(1 / 6, color="black", lw=1, ls=":")
left.set(title="Weight of each source", xlim=(0, 0.75))
left.grid(visible=False)
bars = right.bar(list(errors), list(errors.values()), color=[GREY, BLUE, GREEN], width=0.6)
right.bar_label(bars, fmt="%.3g")
right.set(title="Error on new rows, noise aside", yscale="log", ylim=(1e-3, 30))
right.tick_params(axis="x", labelsize=8.5)
right.grid(visible=False)
save(canvas, given)
