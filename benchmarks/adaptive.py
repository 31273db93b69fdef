"""Oracle calls to a true relative stationarity of 1e-6: the default solver, with nothing set, against the paper's
method and jaxopt at the best settings that a grid search finds for each problem.

python benchmarks/adaptive.py [--problems A-2,E-100] [--budget 100000] [--grid fine|decades|few] [--json rows.json]

All kinds of oracles count alike. The default is run as a user would, `minimize(problem, x0=x0, y0=y0)`, and charged
until it says itself that it has converged; the others are watched from outside and stopped as soon as they are there
(see `proxbi.experiments.tuning` and `jaxopt_peer.py` for how, and for what else is in their favour). A search takes
minutes for each problem, so its outcome is kept in a file (--cache) and used again as long as the problem is the same.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jaxopt_peer

from proxbi import Result, minimize
from proxbi.experiments import certified, tuning
from proxbi.experiments.suite import SUITE, Case

jax.config.update("jax_enable_x64", True)
Row = dict[str, Any]
GRIDS = {
    "fine": (tuning.INNER, tuning.BETAS),
    "decades": (tuning.INNER, tuning.BETAS[::4]),
    "few": ([(k, k) for k in (1, 2, 5, 10, 20)], tuning.BETAS[::4]),
}
"""Pairs of T and N, and outer steps: 2,100, 600 and 120 settings with the four kinds of lower steps."""
DEAR = {"cleaning": "decades"}
"""Where a call takes a thousand times as long, the grid is never larger than this."""


class Cache:
    """Outcomes of searches by name, in a JSON file."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, budget: int, start: float) -> Row | None:
        """What is known, if it is about this problem (its stationarity at x0 tells) and this budget."""
        row = self.rows.get(name)
        if row is None or abs(row["start"] / start - 1) > 1e-6:
            return None
        return row if row["calls"] is not None or row["budget"] >= budget else None

    def put(self, name: str, row: Row) -> None:
        self.rows[name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.rows, indent=1))


def adaptive(result: Result, judge: certified.Judge) -> Row:
    true = float(judge(result.x, result.y))
    row = {"calls": int(result.counts.total), "steps": result.state.step, "status": result.status.name}
    return row | {"stationarity": true, "solved": result.status.name == "CONVERGED" and true <= 1.05 * tuning.TARGET}


def paper(case: Case, solution: Any, budget: int, grid: str) -> Row:
    inner, betas = GRIDS[grid]
    best = tuning.search(case, solution, budget, inner, betas, report=partial(print, "   ", flush=True))
    return best._asdict() | {"setting": str(best.setting)}


def jaxopt(case: Case, solution: Any, budget: int) -> Row:
    return jaxopt_peer.search(case, tuning.scale(case, solution), budget, report=partial(print, "   ", flush=True))


def measure(name: str, arguments: argparse.Namespace, cache: Cache) -> Row:
    case, grid = SUITE[name](), DEAR.get(name, arguments.grid)
    judge = certified.Judge.of(case)
    result = minimize(case.problem, x0=case.x0, y0=case.y0, throw=False)
    row: Row = {"problem": name, "kappa": case.kappa, "h": case.kind, "adaptive": adaptive(result, judge)}
    searches = {"paper": (f"paper, {grid}", partial(paper, grid=grid)), "jaxopt": ("jaxopt", jaxopt)}
    for peer in arguments.peers.split(","):
        search_name, search = searches[peer]
        key, start = f"{name}: {search_name}", float(judge.start)
        known = cache.get(key, arguments.budget, start)
        if known is None:  # the solution found gives the units of their grids, in hindsight
            known = search(case, result.x, arguments.budget) | {"budget": arguments.budget, "start": start}
            cache.put(key, known)
        row[peer] = known | {"ratio": row["adaptive"]["calls"] / (known["calls"] or known["budget"])}
    return row


def line(row: Row) -> str:
    own = row["adaptive"]
    text = f"{row['problem']:13s}{row['kappa']:8.3g}  {row['h']:19s}{own['calls']:6d}{'' if own['solved'] else '!'}"
    for peer in ("paper", "jaxopt"):
        if peer in row:
            found = row[peer]
            calls = f"> {found['budget']}" if found["calls"] is None else str(found["calls"])
            text += f"{calls:>10s}{'<' if found['calls'] is None else ' ':>2s}{found['ratio']:5.3f}  {found['setting']}"
    return text


def summary(rows: list[Row], peer: str) -> str:
    ratios = {row["problem"]: row[peer]["ratio"] for row in rows if peer in row}
    worst = max(ratios, key=ratios.__getitem__)
    return f"adaptive / {peer}: median {statistics.median(ratios.values()):.3f}, largest {ratios[worst]:.3f} ({worst})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(SUITE), help="names of the suite, separated by commas")
    parser.add_argument("--budget", type=int, default=100_000, help="calls after which a setting is given up")
    parser.add_argument("--grid", choices=tuple(GRIDS), default="fine", help="of the search for the paper's best")
    parser.add_argument("--peers", default="paper,jaxopt", help="what to compare with")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "proxbi" / "adaptive.json")
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args()
    unknown = set(arguments.problems.split(",")) - set(SUITE)
    if unknown:
        parser.error(f"--problems: no {', '.join(sorted(unknown))} among {', '.join(SUITE)}.")
    cache, rows = Cache(arguments.cache), []
    for name in arguments.problems.split(","):
        rows.append(measure(name, arguments, cache))
        print(line(rows[-1]), flush=True)
    print("calls; '!' marks a run that did not reach the target, '>' a search in which no setting did; ratio of calls")
    for peer in arguments.peers.split(","):
        print(summary(rows, peer))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
