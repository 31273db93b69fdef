"""One of several processes of a run, with its rank in the environment: `child_rank.py FOLDER [WHAT [STEPS]]`. It joins
the others, runs on their mesh, is told to differ from them, and then runs until it is asked to end.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import proxbi
from proxbi import Checkpoint, Record
from proxbi.distributed import initialize, row_mesh

LAUNCH = initialize()

# E402 is off: this module makes JAX arrays when it is imported, and `initialize` must come before any of them.
from child_mesh import FIXED, linear, numbers, starts  # noqa: E402

ENDLESS = 10**8


def differing(problem: proxbi.Problem, rank: int) -> list[str]:
    """What is said where rank 1 has other arguments."""
    x0, y0 = starts()
    attempts: list[dict[str, Any]] = [
        {"x0": x0[: len(x0) - rank], "y0": y0},
        {"x0": x0 + 1e-9 * rank, "y0": y0},
        {"x0": x0, "y0": y0, "steps": 5 + rank},
        {"x0": x0, "y0": y0, "callbacks": [Checkpoint("/proc/nowhere")]},  # of which only rank 0 knows
    ]
    said = []
    for attempt in attempts:
        x0, y0 = attempt.pop("x0"), attempt.pop("y0")
        try:
            proxbi.minimize(problem, x0, y0, FIXED, **{"steps": 5} | attempt)
        except (ValueError, RuntimeError) as error:
            said.append(str(error))
    return said


def say(row: dict[str, Any], snapshot: Any) -> None:
    print(row["step"], flush=True)


def fail(row: dict[str, Any], snapshot: Any) -> None:
    raise LookupError("a callback of rank 1")


def write(path: Path, result: proxbi.Result) -> None:
    path.write_bytes(bytes(memoryview(result.x).cast("B")))


def ended(problem: proxbi.Problem, out: Path, steps: int) -> proxbi.Result:
    """A run with checkpoints, resumed if there are any."""
    folder = out / "checkpoints"
    options = {"steps": steps, "every": 5, "callbacks": [Checkpoint(folder), say], "resume": folder}
    return proxbi.minimize(problem, *starts(), FIXED, **options)


def main(folder: str, what: str = "all", steps: str = str(ENDLESS)) -> None:
    out, rank = Path(folder), LAUNCH.process_id
    jax.config.update("jax_enable_x64", True)
    if what == "numbers":
        np.savez(out / f"numbers-{rank}.npz", **numbers(row_mesh()))
        return
    problem = proxbi.shard(linear())
    if what == "resume":
        write(out / f"x-{rank}.bin", ended(problem, out, int(steps)))
        return
    if what == "fails":
        callbacks = [fail] if rank == 1 else []
        proxbi.minimize(problem, *starts(), FIXED, steps=ENDLESS, every=5, callbacks=callbacks)
    assert initialize() == LAUNCH  # a second call changes nothing
    result = proxbi.minimize(problem, *starts(), FIXED, steps=50, callbacks=[Record(out / f"record-{rank}.csv")])
    write(out / f"x-{rank}.bin", result)
    if what == "once":
        return
    (out / f"said-{rank}.txt").write_text("\n".join(differing(problem, rank)))
    result = ended(problem, out, ENDLESS)
    print(result.status.name, result.steps, flush=True)
    sys.exit(result.status.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
