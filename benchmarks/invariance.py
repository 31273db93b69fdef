"""What the default solver makes of other units and other starts: oracle calls, and where it ends.

python benchmarks/invariance.py [--problems A-2,E-100] [--starts 20] [--json rows.json]

For each problem of the suite: the calls from its own start; the calls with f (and h), g, x or y in units 1,000 times
larger and smaller, as a ratio to that; the median and range of the calls from random starts; and the objectives Phi + h
at which those ended. A convex problem must have one; where there are several, each is a stationary point.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import jax

from judge import Judge
from proxbi import minimize
from suite import SUITE, Case, random_start, scaled

jax.config.update("jax_enable_x64", True)
UNITS = [{name: factor} for name in "fgxy" for factor in (1e-3, 1e3)]


def solve(case: Case, judge: Judge) -> dict[str, Any]:
    """One run with nothing set; `stationarity` is the true one, relative to the case's own start."""
    result = minimize(case.problem, x0=case.x0, y0=case.y0, throw=False)
    objective = case.exactly(result.x, result.y).value + case.problem.regularizer.value(result.x)
    row = {"calls": int(result.counts.total), "status": result.status.name, "objective": float(objective)}
    return row | {"stationarity": float(judge(result.x, result.y))}


def in_units(case: Case, units: dict[str, float]) -> dict[str, Any]:
    other = scaled(case, **units)
    row = solve(other, Judge.of(other))
    return row | {"units": units, "objective": row["objective"] / units.get("f", 1.0)}


def measure(name: str, starts: int) -> dict[str, Any]:
    case = SUITE[name]()
    judge = Judge.of(case)
    others = [solve(random_start(case, seed), judge) for seed in range(starts)]
    return {
        "problem": name,
        "own": solve(case, judge),
        "units": [in_units(case, units) for units in UNITS],
        "starts": others,
    }


def distinct(values: list[float]) -> list[float]:
    """Values that differ by more than 1e-5 of the largest, each once."""
    found: list[float] = []
    for value in sorted(values):
        if not found or value - found[-1] > 1e-5 * max(map(abs, values)):
            found.append(value)
    return found


def line(row: dict[str, Any]) -> str:
    own, starts = row["own"]["calls"], [start["calls"] for start in row["starts"]]
    ratios = " ".join(f"{unit['calls'] / own:5.2f}" for unit in row["units"])
    failed = [run for run in (row["own"], *row["units"], *row["starts"]) if run["status"] != "CONVERGED"]
    text = f"{row['problem']:13s}{own:6d}   {ratios}"
    if starts:
        ends = distinct([start["objective"] for start in row["starts"]])
        spread = f"{statistics.median(starts):7.0f} ({min(starts)} to {max(starts)})"
        text += f"  {spread:24s} {', '.join(f'{end:.6g}' for end in ends[:4])}{', ...' if len(ends) > 4 else ''}"
    return text + (f"   NOT CONVERGED: {len(failed)}" if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(SUITE), help="names of the suite, separated by commas")
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args()
    print(
        "problem       calls   " + " ".join(f"{n}{v:4.0e}"[:5] for u in UNITS for n, v in u.items()) + "  random starts"
    )
    rows = []
    for name in arguments.problems.split(","):
        rows.append(measure(name, arguments.starts))
        print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
