"""One of several processes of a run: `child_rank.py FOLDER`, with its rank in the environment. It joins the others, runs
on their mesh, is told to differ from them, and then runs until it is asked to end.
"""

import sys
from pathlib import Path
from typing import Any

import jax

from proxbi.distributed import initialize

LAUNCH = initialize()  # before the solvers of `child_mesh` are made, which are JAX arrays

import proxbi  # noqa: E402
from child_mesh import FIXED, linear, starts  # noqa: E402
from proxbi import Checkpoint, Record  # noqa: E402

ENDLESS = 10**8


def differing(problem: proxbi.Problem, rank: int) -> list[str]:
    """What is said where rank 1 has other arguments."""
    x0, y0 = starts()
    attempts: list[dict[str, Any]] = [
        {"x0": x0[: len(x0) - rank], "y0": y0},
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


def main(folder: str, *what: str) -> None:
    out = Path(folder)
    jax.config.update("jax_enable_x64", True)
    rank = LAUNCH.process_id
    problem = proxbi.shard(linear())
    assert initialize() == LAUNCH  # a second call changes nothing
    record = Record(out / f"record-{rank}.csv")
    result = proxbi.minimize(problem, *starts(), FIXED, steps=50, callbacks=[record])
    with (out / f"x-{rank}.bin").open("wb") as file:
        file.write(bytes(memoryview(result.x).cast("B")))
    (out / f"said-{rank}.txt").write_text("\n".join(differing(problem, rank)))

    def say(row: dict[str, Any], snapshot: Any) -> None:
        print(row["step"], flush=True)

    if "once" in what:
        return
    checkpoints = Checkpoint(out / "checkpoints")
    result = proxbi.minimize(problem, *starts(), FIXED, steps=ENDLESS, every=5, callbacks=[checkpoints, say])
    print(result.status.name, result.steps, flush=True)
    sys.exit(result.status.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
