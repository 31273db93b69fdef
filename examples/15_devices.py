"""Several devices

`shard(problem, mesh)` spreads the rows of a problem over devices, and their weights with them. Here one machine poses
as four devices, so that the example runs anywhere; on a machine with several GPUs leave the first two lines out. No
speed is measured: what the figure shows is where rows lie, that the answer does not depend on the number of devices,
and that a device holds less the more there are.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # before JAX counts its devices

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import AID, CG, Box, GradientDescent, ProxBiO, glm, minimize, shard
from proxbi.distributed import row_mesh
from shared import BLUE, GREEN, GREY, ORANGE, PURPLE, figure, options, save

given = options(__doc__)
ROWS, TRUSTED, FEATURES, STEPS = (1000, 300, 5, 10) if given.small else (6000, 1000, 40, 40)

draw = np.random.default_rng(0)
truth = draw.integers(0, 3, ROWS + TRUSTED)
Z = 0.8 * np.eye(3, FEATURES)[truth] + 0.4 * draw.normal(size=(ROWS + TRUSTED, FEATURES))
wrong = draw.uniform(size=ROWS) < 0.3
labels = np.where(wrong, (truth[:ROWS] + 1) % 3, truth[:ROWS])

problem = glm.linear_model(
    (Z[:ROWS], labels),
    (Z[ROWS:], truth[ROWS:]),
    "softmax",
    weights=jax.nn.sigmoid,
    ridge=0.01,
    regularizer=Box(-5.0, 5.0),
)
solver = ProxBiO(AID(GradientDescent(1.0, steps=10), CG(steps=10)), step_size=2.5 * ROWS)
x0, y0 = jnp.zeros(ROWS), jnp.zeros((3, FEATURES))
alone = minimize(problem, x0, y0, solver, steps=STEPS)
found, held = {}, {}
for number in (1, 2, 4):
    on_mesh = shard(problem, row_mesh(jax.devices()[:number]))
    found[number] = minimize(on_mesh, x0, y0, solver, steps=STEPS)
    leaves = [leaf for leaf in jax.tree.leaves(on_mesh) if isinstance(leaf, jax.Array)]
    held[number] = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    print(number, "devices:", found[number])
apart = {number: float(jnp.max(jnp.abs(result.x - alone.x))) for number, result in found.items()}
print("largest differences of x", apart)

canvas = figure(10, 3.8)
left, middle, right = canvas.subplots(1, 3, width_ratios=[2, 1, 1])
weights = np.asarray(jax.nn.sigmoid(found[4].x))
# Rows lie in places whose number is a multiple of 384, so that every device has the same number of them.
places = -(-ROWS // 384) * 384
for device, colour in enumerate((BLUE, ORANGE, GREEN, PURPLE)):
    here = np.arange(device * places // 4, min((device + 1) * places // 4, ROWS))
    left.plot(here, weights[here], ".", ms=2, color=colour)
    left.text(here.mean(), 1.05, f"device {device}", color=colour, ha="center", fontweight="bold", fontsize=9.5)
left.set(xlabel="row", ylabel="weight of the row", ylim=(-0.03, 1.12), title="Four devices clean labels together")
bars = middle.bar([str(number) for number in apart], list(apart.values()), color=GREY, width=0.6)
middle.bar_label(bars, [f"{value:.0e}" for value in apart.values()], fontsize=8.5)
middle.set(title="Difference to no mesh", xlabel="devices", yscale="log", ylim=(1e-17, 1e-9), ylabel="largest, of x")
bars = right.bar([str(number) for number in held], [size / 1e6 for size in held.values()], color=GREEN, width=0.6)
right.bar_label(bars, fmt="%.2f")
right.set(title="MB on each device", xlabel="devices")
for axes in (middle, right):
    axes.grid(visible=False)
save(canvas, given)
