"""The parts of the benchmark. Each returns rows: what was measured, its median and quartiles, and in which unit."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.environments import OURS, Worker, workers
from bench.workers.common import SIZES, Truth, arrays, outputs, start

Row = dict[str, Any]

CLOSE = 1e-3
"""How far a hypergradient may be from the truth, relative to its size: float32 and a hundred steps leave 1e-6."""
SAME = 1e-3
"""How far x may be from ours after the same steps."""
MOST_SLOWDOWN = 2.5
"""Under load, of what it takes on an idle machine: two processes share each core, and half a time is for trouble."""


class Setup(NamedTuple):
    """What the command line chose."""

    pythons: dict[str, Path | str]
    """An interpreter for each contender, or why there is none."""
    quick: bool
    gpu: bool
    folder: Path
    rounds: int

    def workers(self, names: list[str]) -> Any:
        """Running processes of these contenders."""
        return workers(names, self.pythons, self.gpu, self.folder / "logs")


def row(part: str, name: str, what: str, values: Any, unit: str, **more: Any) -> Row:
    """The median and the quartiles of what was measured."""
    low, middle, high = (float(q) for q in np.quantile(np.atleast_1d(values), [0.25, 0.5, 0.75]))
    return {"part": part, "name": name, "what": what, "median": middle, "low": low, "high": high, "unit": unit, **more}


def told(part: str, name: str, what: str, note: str) -> Row:
    """A row without a number."""
    return {"part": part, "name": name, "what": what, "note": note}


# --- who is right -----------------------------------------------------------------------------------------------------


def small_problem() -> dict[str, Any]:
    """One that gradient descent solves to rounding, and CG in as many steps as y has entries."""
    sizes = {"rows": 60, "held_out": 40, "features": 5, "classes": 3, "spread": 2.0, "ridge": 0.5}
    return sizes | {"lower_steps": 100, "cg_steps": 15, "step_size": 0.5}


def judged(worker: Worker) -> Row:
    """The error of a contender's hypergradient, beside the dense truth."""
    sizes = SIZES | small_problem()
    known = Truth(sizes, arrays(sizes)).hypergradient(start(sizes).astype(float))
    answer = worker.ask(task="hypergradient", **small_problem())
    if "failed" in answer:
        return told("hypergradient", worker.name, "absent", answer["failed"])
    error = _distance(answer["hypergradient"], known)
    note = "right" if error <= CLOSE else "wrong, and not timed"
    return row("hypergradient", worker.name, "error", error, "relative", version=answer["version"], note=note)


# --- one outer step ---------------------------------------------------------------------------------------------------


def one_step(setup: Setup, rows: int) -> list[Row]:
    """All who are right take the same steps, in turns."""
    names = [name for name, python in setup.pythons.items() if isinstance(python, Path)]
    missing = {name: why for name, why in setup.pythons.items() if name not in names}
    found = [told("hypergradient", name, "absent", str(why)) for name, why in missing.items()]
    with setup.workers(names) as running:
        floor = running.pop("floor")
        found += [judged(worker) for worker in running.values()]
        right = {r["name"]: running[r["name"]] for r in found if r["note"] == "right"}
        built = {name: worker.ask(task="build", rows=rows, gpu=setup.gpu) for name, worker in right.items()}
        failed = {name: answer["failed"] for name, answer in built.items() if "failed" in answer}
        found += [told("step", name, "failed", why) for name, why in failed.items()]
        timed = {name: worker for name, worker in right.items() if name not in failed}
        floor.ask(rows=rows)
        rounds = [_round(timed, floor) for _ in range(setup.rounds)]
    for name in timed:
        apart = _distance(built[name]["x"], built[OURS]["x"])
        found += _timed(name, rows, rounds, "same iterates" if apart <= SAME else f"other iterates, by {apart:.1e}")
        found.append(row("step", name, "first call", built[name]["first_seconds"], "s", rows=rows))
    for kind in ("reads", "products"):
        found.append(row("step", f"floor: {kind}", "time", [1e3 * r["floor"][kind] for r in rounds], "ms", rows=rows))
    return found


def _timed(name: str, rows: int, rounds: list[dict[str, dict[str, Any]]], note: str) -> list[Row]:
    """What the rounds say about one contender."""

    def values(who: str, what: str) -> Any:
        return np.asarray([r[who][what] for r in rounds])

    wall, processors = values(name, "seconds"), values(name, "processor_seconds")
    ratios = {
        "over floor of products": wall / values("floor", "products"),
        "over floor of reads": wall / values("floor", "reads"),
        f"over {OURS}": wall / values(OURS, "seconds"),
        f"over {OURS}, processor time": processors / values(OURS, "processor_seconds"),
    }
    return [
        row("step", name, "time", 1e3 * wall, "ms", rows=rows, note=note),
        row("step", name, "processor time", 1e3 * processors, "ms", rows=rows),
        *(row("step", name, what, ratio, "ratio", rows=rows) for what, ratio in ratios.items()),
        row("step", name, "peak memory", rounds[-1][name]["peak_bytes"] / 2**20, "MiB", rows=rows),
    ]


def _distance(found: Any, known: Any) -> float:
    return float(np.linalg.norm(np.subtract(found, known)) / np.linalg.norm(known))


def _round(running: dict[str, Worker], floor: Worker) -> dict[str, dict[str, Any]]:
    return {"floor": floor.ask(task="steps")} | {name: worker.ask(task="steps") for name, worker in running.items()}


# --- how it grows -----------------------------------------------------------------------------------------------------


SERIES = {
    "rows": ({"features": 128}, [20_000, 100_000, 1_000_000], [5_000, 20_000, 80_000]),
    "features": ({"rows": 20_000}, [98, 392, 1568], [98, 392]),
    "classes": ({"rows": 20_000, "features": 392}, [8, 32, 128], [8, 32]),
    "lower_steps": ({"rows": 20_000, "features": 392}, [5, 20, 80], [5, 20]),
}
"""What varies: what stays, the sizes, and those of `--quick`."""
KAPPAS = [1e2, 1e4, 1e6]
"""Of the second moments of the features; the ridge is below all of them."""


def exponent(sizes: Any, values: Any) -> float:
    """p of the best fit of values = c sizes^p, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(setup: Setup) -> list[Row]:
    """Time of an outer step against each size, and of the default solver against the condition number."""
    found: list[Row] = []
    with setup.workers([OURS]) as running:
        worker = running[OURS]
        for what, (fixed, long, short) in SERIES.items():
            sizes, medians = short if setup.quick else long, []
            for size in sizes:
                worker.need(task="build", **fixed | {what: size}, gpu=setup.gpu, steps=1)
                times = [worker.need(task="steps")["seconds"] for _ in range(setup.rounds)]
                found.append(row("growth", OURS, what, 1e3 * np.asarray(times), "ms", size=size))
                medians.append(np.min(times))
            found.append(row("growth", OURS, f"exponent in {what}", exponent(sizes, medians), "exponent"))
        found += _in_kappa(worker)
    return found


def _in_kappa(worker: Worker) -> list[Row]:
    found, products = [], []
    for kappa in KAPPAS:
        sizes = {"rows": 400, "held_out": 200, "features": 20, "classes": 3, "strength": 0.0, "bound": 3.0}
        worker.need(task="build", **sizes, spread=kappa**0.5, ridge=0.1 / kappa)
        answer = worker.need(task="default")
        products.append(answer["products"])
        found.append(row("growth", OURS, "kappa", 1e3 * answer["seconds"], "ms", size=kappa, note=answer["status"]))
        found.append(row("growth", OURS, "kappa, products", answer["products"], "Hessian products", size=kappa))
    found.append(row("growth", OURS, "exponent in kappa, products", exponent(KAPPAS, products), "exponent"))
    return found


# --- a race to one objective ------------------------------------------------------------------------------------------


PROBLEMS = {
    "softmax, weights": {"loss": "softmax", "x_is": "weights"},
    "logistic, weights": {"loss": "logistic", "x_is": "weights"},
    "squared, ridge": {"loss": "squared", "x_is": "ridge"},
    "softmax, ridge": {"loss": "softmax", "x_is": "ridge"},
    "logistic, ridge": {"loss": "logistic", "x_is": "ridge"},
}
RACE = {"rows": 400, "held_out": 400, "features": 20, "classes": 3, "strength": 0.0, "bound": 5.0, "spread": 10.0}
"""What all of them share: large enough that a step is work, small enough for a dense truth."""
STEPS = {"weights": (30.0, 300.0, 3000.0), "ridge": (1.0, 10.0, 100.0)}
LOWER_STEPS = (10, 50)
RACERS = ("jaxopt", "torch")
GAP = 1e-3
"""The target is where this part of the way from the start down to our answer is left."""


def race(setup: Setup) -> list[Row]:
    """The default solver, untuned and to its own end, against the best of a grid of step sizes and lower steps."""
    racers = [name for name in RACERS if isinstance(setup.pythons.get(name), Path)]
    problems = list(PROBLEMS.items())[: 2 if setup.quick else None]
    found, ratios = [], []
    with setup.workers([OURS, *racers]) as running:
        for title, kind in problems:
            sizes = RACE | kind
            running[OURS].need(task="build", **sizes)
            answer = running[OURS].need(task="default")
            full = SIZES | sizes
            first = Truth(full, arrays(full)).phi(start(full).astype(float))
            target = answer["objective"] + GAP * (first - answer["objective"])
            found.append(row("race", OURS, title, 1e3 * answer["seconds"], "ms", note=answer["status"]))
            best = [_best(running[name], sizes, target, 20 * answer["seconds"]) for name in racers]
            found += [
                row("race", name, title, 1e3 * taken, "ms") if taken else told("race", name, title, "not reached")
                for name, taken in zip(racers, best, strict=True)
            ]
            if any(best):
                ratios.append(answer["seconds"] / min(taken for taken in best if taken))
    if ratios:
        found.append(row("race", OURS, "over the best peer, median", np.median(ratios), "ratio"))
        found.append(row("race", OURS, "over the best peer, worst", max(ratios), "ratio"))
    return found


def _best(worker: Worker, sizes: dict[str, Any], target: float, limit: float) -> float | None:
    """The shortest time over the grid."""
    taken = []
    full = SIZES | sizes
    lower_step = _lower_step(full)
    for lower_steps in LOWER_STEPS:
        worker.need(task="build", **sizes, lower_steps=lower_steps, step_size=lower_step, steps=1)
        for outer_step in STEPS[sizes["x_is"]]:
            answer = worker.need(task="race", outer_step=outer_step, target=target, limit=limit)
            taken.append(answer.get("seconds"))
    return min((seconds for seconds in taken if seconds), default=None)


def _lower_step(sizes: dict[str, Any]) -> float:
    """1 / L at the start: a gift to the peers, who would have to search for it."""
    truth = Truth(sizes, arrays(sizes))
    zero = np.zeros((outputs(sizes), sizes["features"]))
    return float(1 / np.linalg.eigvalsh(truth.at(start(sizes).astype(float), zero)[1])[-1])


# --- sweeps, load -----------------------------------------------------------------------------------------------------


def sweeping(setup: Setup) -> list[Row]:
    """32 step sizes in one program, against one by one."""
    with setup.workers([OURS]) as running:
        running[OURS].need(task="build", rows=2_000 if setup.quick else 20_000, features=784, gpu=setup.gpu, steps=2)
        answer = running[OURS].need(task="sweeping", count=32)
    found = [row("sweep", OURS, kind, answer[kind], "s") for kind in ("together", "one_by_one")]
    ratio = answer["together"] / answer["one_by_one"]
    return [*found, row("sweep", OURS, "together over one by one", ratio, "ratio", note=f"apart {answer['apart']:.1e}")]


BUSY = "import numpy as np\na = np.ones((1500, 1500))\nwhile True: a @ a"


def under_load(setup: Setup) -> list[Row]:
    """`minimize` on the paper's problem, with every core busy with a product of NumPy; and with another `minimize`."""
    rows = 5_000 if setup.quick else 20_000
    with setup.workers([OURS]) as running, workers([OURS], setup.pythons, setup.gpu, setup.folder / "other") as second:
        for worker in (running[OURS], second[OURS]):
            worker.need(task="build", rows=rows, gpu=setup.gpu)
            worker.need(task="paper", repeats=1)
        idle = running[OURS].need(task="paper", repeats=setup.rounds)["seconds"]
        busy = subprocess.Popen([sys.executable, "-c", BUSY])
        try:
            loaded = running[OURS].need(task="paper", repeats=setup.rounds)["seconds"]
        finally:
            busy.kill()
            busy.wait()
        second[OURS].send(task="paper", repeats=3 * setup.rounds)
        beside = running[OURS].need(task="paper", repeats=setup.rounds)["seconds"]
        second[OURS].answer()
    found = []
    for what, times in (("NumPy on every core", loaded), ("another minimize", beside)):
        ratio = float(np.median(times) / np.median(idle))
        note = "at most 2.5, as it must be" if ratio <= MOST_SLOWDOWN else "more than 2.5"
        found.append(row("load", OURS, what, ratio, "ratio to idle", note=note))
    return [row("load", OURS, "idle", 1e3 * np.asarray(idle), "ms"), *found]
