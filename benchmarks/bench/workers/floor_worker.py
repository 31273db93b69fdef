"""The floor: what this machine needs for one read of X, and for each of the two products, by the fastest way we know.

A step reads X once for each gradient, Hessian product and cross term, and multiplies with it twice, or once for the
last.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import SIZES, arrays, outputs, say, seconds

from proxbi import _compile
from proxbi.glm import design


def calls(features: np.ndarray, count: int) -> dict[str, Callable[[], Any]]:
    x = jnp.asarray(features)
    w, r = (np.ones(shape, np.float32) for shape in ((count, x.shape[1]), (len(x), count)))
    read, one = jax.jit(lambda m, s: jnp.max(m * s)), jnp.float32(1)
    made: dict[str, Callable[[], Any]] = {
        "read": lambda: read(x, one),
        "scores, NumPy": lambda: features @ w.T,
        "sums, NumPy": lambda: r.T @ features,
    }
    scores, sums = _compile.jit(lambda kept, a: kept.scores(a)), _compile.jit(lambda kept, a: kept.sums(a))
    for layout in ("rows", "both", "blocks"):
        kept, left, right = design(x, layout=layout), jnp.asarray(w), jnp.asarray(r)
        made[f"scores, {layout}"] = lambda kept=kept, left=left: scores(kept, left)
        made[f"sums, {layout}"] = lambda kept=kept, right=right: sums(kept, right)
    return made


def main() -> None:
    """`{"task": "build", sizes}`, then `{"task": "steps"}` as often as wanted."""
    asked = SIZES | json.loads(sys.stdin.readline())
    made = calls(arrays(asked)["rows"], outputs(asked))
    for call in made.values():
        jax.block_until_ready(call())
    say(version=f"JAX {jax.__version__}, NumPy {np.__version__}, {jax.devices()[0].device_kind}")
    for _ in sys.stdin:
        found = {name: seconds(lambda call=call: jax.block_until_ready(call()))[0] for name, call in made.items()}
        best = {kind: min(v for name, v in found.items() if name.startswith(kind)) for kind in ("scores", "sums")}
        reads = asked["lower_steps"] + asked["cg_steps"] + 2
        products = (reads - 1) * (best["scores"] + best["sums"]) + best["scores"]
        say(reads=reads * found["read"], products=products, read=found["read"], **best)


main()
