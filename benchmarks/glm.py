"""The time of one outer step on the paper's problem: `proxbi.glm`, the same formulas under autodiff, jaxopt, the floor.

python benchmarks/glm.py [--rows 20000 200000] [--rounds 15] [--json rows.json]
python benchmarks/glm.py --rows 2000000 --only glm bfloat16               # on a GPU
python benchmarks/glm.py --rows 50000000 --only bfloat16 --rounds 3      # 78 GB of features

The paper's problem: hyper-cleaning with 784 features and 10 classes, T = 5 lower steps and 10 CG steps from zero, in
float32. All contenders take the same steps, and what they reach is compared before anything is timed; bfloat16 solves
the problem with features rounded once, and is compared with autodiff on these. jaxopt, where it is installed, gets its
data as constants, which is its fastest form: XLA then transposes X when it compiles.

The floor is what the mathematics needs: 5 gradients, one more for the residual, 10 Hessian products and one cross term
read X 17 times ("17 reads"), and multiply with it 33 times ("33 products", each by the fastest way that we know here).

A round times every contender once, in turns, in one process. Printed are medians, and the medians and quartiles of the
ratios within a round: on a machine that others use, only these mean something, and `--cpu-time` with one thread
(XLA_FLAGS=--xla_cpu_multi_thread_eigen=false) means more. On GPUs also the peak of the memory is printed.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import NegativeCappedL1, Problem, ProxBiO, _compile, paper_solver, run
from proxbi.cleaning.problem import hyper_cleaning
from proxbi.datasets import Labelled
from proxbi.glm import Softmax, design, linear_model

FEATURES, CLASSES, TRUSTED, RIDGE, CAP = 784, 10, 5_000, 1e-3, 20.0
LOWER_STEPS, CG_STEPS = 5, 10
STEP_SIZE, OUTER_STEP = 0.1, 1.0
READS, PRODUCTS = LOWER_STEPS + CG_STEPS + 2, 2 * (LOWER_STEPS + CG_STEPS + 1) + 1
STEPS = 3  # outer steps in one timed call: enough that its start costs nothing
SMALL = 200_000  # rows, up to which copies for everyone fit everywhere
NAMES = ("glm", "bfloat16", "autodiff", "jaxopt")


@partial(jax.jit, static_argnums=(0, 1))
def features(rows: int, dtype: Any) -> jax.Array:
    """Random rows of mixed scales, made in blocks: nothing larger than themselves is ever there."""
    block = next(size for size in range(min(rows, 20_000), 0, -1) if rows % size == 0)
    scales = jnp.geomspace(0.1, 1.0, FEATURES)

    def part(k: jax.Array) -> jax.Array:
        return (jax.random.normal(jax.random.fold_in(jax.random.key(0), k), (block, FEATURES)) * scales).astype(dtype)

    return jax.lax.map(part, jnp.arange(rows // block)).reshape(rows, FEATURES)


class Setting:
    """The problem, once, and what every contender starts from."""

    def __init__(self, rows: int, dtype: Any = jnp.float32):
        draw = np.random.default_rng(0)
        self.rows = rows
        self.train = Labelled(features(rows, dtype), jnp.asarray(draw.integers(0, CLASSES, rows)))
        self.trusted = Labelled(features(TRUSTED, dtype), jnp.asarray(draw.integers(0, CLASSES, TRUSTED)))
        self.regularizer = NegativeCappedL1(0.1 / rows, CAP)
        self.start = jnp.zeros(rows), jnp.zeros((CLASSES, FEATURES))

    def plain(self) -> Problem:
        """The formulas, for autodiff."""
        data = {"train": tuple(self.train), "trusted": tuple(self.trusted), "ridge": jnp.float32(RIDGE)}
        return Problem(plain_upper, plain_lower, self.regularizer, data)

    def structured(self) -> Problem:
        """`hyper_cleaning`; spelt out for features that are stored as bfloat16."""
        if self.train.features.dtype == jnp.float32:
            return hyper_cleaning(self.train, self.trusted, RIDGE, self.regularizer, preconditioned=False)
        ridge = jnp.float32(2 * RIDGE)
        options = {"weights": jax.nn.sigmoid, "ridge": ridge, "regularizer": self.regularizer}
        return linear_model(self.train, self.trusted, "softmax", **options)

    def as_float32(self) -> "Setting":
        """The same numbers, in float32."""
        made = Setting.__new__(Setting)
        made.__dict__ |= self.__dict__
        made.train, made.trusted = (
            rows._replace(features=rows.features.astype(jnp.float32)) for rows in (self.train, self.trusted)
        )
        return made


def plain_upper(x: jax.Array, y: jax.Array, data: dict[str, Any]) -> jax.Array:
    rows, labels = data["trusted"]
    return jnp.mean(Softmax().value(rows @ y.T, labels))


def plain_lower(x: jax.Array, y: jax.Array, data: dict[str, Any]) -> jax.Array:
    rows, labels = data["train"]
    return jnp.mean(jax.nn.sigmoid(x) * Softmax().value(rows @ y.T, labels)) + data["ridge"] * jnp.sum(y**2)


def solver() -> ProxBiO:
    # tol = 0: CG takes all of its steps.
    options = {"T": LOWER_STEPS, "cg_steps": CG_STEPS, "cg_tol": 0.0, "warm": False}
    return paper_solver("proximal BiO-AID", alpha=STEP_SIZE, beta=OUTER_STEP, **options)


@_compile.jit  # as `minimize` compiles
def outer_steps(problem: Problem, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    state, _ = run(problem, solver(), x, y, steps=STEPS)
    return state.x, state.y


def jaxopt_steps(setting: Setting) -> Callable[..., Any]:
    """The same steps by jaxopt, with the problem in a closure: its data are constants of the program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # jaxopt announces that it is no longer maintained
        import jaxopt
    problem = setting.plain()
    inner = jaxopt.GradientDescent(
        fun=lambda y, x: problem.value_lower(x, y),
        stepsize=STEP_SIZE,
        maxiter=LOWER_STEPS,
        tol=0.0,
        acceleration=False,
        implicit_diff=True,
        implicit_diff_solve=partial(jaxopt.linear_solve.solve_cg, tol=0.0, maxiter=CG_STEPS),
    )

    def phi(x: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = inner.run(start, x).params
        return problem.value_upper(x, y), y

    def step(_: Any, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, start = at
        gradient, y = jax.grad(phi, has_aux=True)(x, start)
        return problem.regularizer.prox(x - OUTER_STEP * gradient, OUTER_STEP), y

    return jax.jit(lambda x, y: jax.lax.fori_loop(0, STEPS, step, (x, y)))


def contenders(setting: Setting, only: list[str]) -> dict[str, Callable[[], Any]]:
    """What is timed, by name; each is a call that takes `STEPS` outer steps."""
    found: dict[str, Callable[[], Any]] = {}
    rounded = Setting(setting.rows, jnp.bfloat16) if "bfloat16" in only else None
    for name in only:
        if name == "jaxopt":
            try:
                found[name] = partial(jaxopt_steps(setting), *setting.start)
            except ImportError:
                print("jaxopt is not installed: left out")
            continue
        problem = {
            "glm": setting.structured,
            "bfloat16": rounded.structured if rounded else None,
            "autodiff": setting.plain,
        }[name]()
        found[name] = partial(outer_steps, problem, *setting.start)
    return found


def check(setting: Setting, found: dict[str, Callable[[], Any]]) -> None:
    """All of them are at the same place after their steps."""
    truth = jax.device_get(outer_steps(setting.plain(), *setting.start))
    if "bfloat16" in found:
        same = Setting(setting.rows, jnp.bfloat16).as_float32()
        rounded = jax.device_get(outer_steps(same.plain(), *setting.start))
    for name, call in found.items():
        for a, b in zip(jax.device_get(call()), rounded if name == "bfloat16" else truth, strict=True):
            off = np.linalg.norm(a - b) / np.linalg.norm(b)
            assert off < 1e-3, f"{name} is elsewhere, by {off:.1e}"


def floor(setting: Setting) -> dict[str, Callable[[], Any]]:
    """One read of X, and the two products in all ways."""
    matrix, w = setting.train.features, jnp.ones((CLASSES, FEATURES))
    r = jnp.ones((setting.rows, CLASSES))
    read = jax.jit(lambda m, s: jnp.max(m.astype(jnp.float32) * s))
    calls = {"read": partial(read, matrix, jnp.float32(1))}
    for layout in ("rows", "both", "blocks") if setting.rows <= SMALL else ("rows", "blocks"):
        kept = design(matrix, layout=layout)
        calls[f"X W', {layout}"] = partial(_compile.jit(lambda k, w: k.scores(w)), kept, w)
        calls[f"R' X, {layout}"] = partial(_compile.jit(lambda k, r: k.sums(r)), kept, r)
    return calls


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    jax.block_until_ready(call())
    return clock() - begin


def quartiles(values: Any) -> list[float]:
    return [float(q) for q in np.quantile(values, [0.25, 0.5, 0.75])]


def measure(rows: int, only: list[str], rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    if rows > SMALL and only == ["bfloat16"]:
        setting = Setting(rows, jnp.bfloat16)
        calls: dict[str, Callable[[], Any]] = {"bfloat16": partial(outer_steps, setting.structured(), *setting.start)}
    else:
        setting = Setting(rows)
        calls = contenders(setting, only)
    parts = floor(setting)
    compiling = {name: seconds(call) for name, call in (calls | parts).items()}
    if rows <= SMALL:
        check(setting, calls)
    times: dict[str, list[float]] = {name: [] for name in calls | parts}
    for _ in range(rounds):
        for name, call in (calls | parts).items():
            times[name].append(seconds(call, clock) / (STEPS if name in calls else 1))
    table = {name: np.asarray(found) for name, found in times.items()}
    kinds = ([t for name, t in table.items() if name.startswith(kind)] for kind in ("X W", "R' X"))
    products = [np.min(found, axis=0) for found in kinds]
    table[f"floor: {READS} reads"] = READS * table["read"]
    table[f"floor: {PRODUCTS} products"] = PRODUCTS / 2 * (products[0] + products[1])
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "rows": rows,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "first_call_seconds": {name: compiling[name] for name in calls},
        "milliseconds": {name: [1e3 * q for q in quartiles(found)] for name, found in table.items()},
        "ratios": {
            f"{name} / {other}": quartiles(table[name] / table[other])
            for name in calls
            for other in table
            if other != name and (other in calls or other.startswith("floor"))
        },
        "peak_memory_over_X": stats.get("peak_bytes_in_use", np.nan) / setting.train.features.nbytes,
    }


def show(found: dict[str, Any]) -> None:
    print(f"\n{found['rows']:,} rows x {FEATURES}, {CLASSES} classes, {found['device']}, JAX {found['jax']}")
    for name, (low, middle, high) in found["milliseconds"].items():
        print(f"  {name:<24} {middle:9.3f} ms   ({low:.3f} to {high:.3f})")
    for name, (low, middle, high) in found["ratios"].items():
        print(f"  {name:<36} {middle:6.2f}   ({low:.2f} to {high:.2f})")
    for name, value in found["first_call_seconds"].items():
        print(f"  first call of {name:<14} {value:6.2f} s")
    print(f"  peak memory / X          {found['peak_memory_over_X']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=["glm", "autodiff", "jaxopt"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true", help="of this process, which others disturb less")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    results = []
    # On GPUs float32 products are rounded to fewer bits by default; here they are not.
    with jax.default_matmul_precision("highest"):
        for rows in arguments.rows:
            results.append(measure(rows, arguments.only, arguments.rounds, clock))
            show(results[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
