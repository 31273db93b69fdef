"""Oracle calls to a true relative stationarity of 1e-6: the default solver, with nothing set, against the paper's
method and jaxopt at the best settings that a grid search finds for each problem.

python benchmarks/adaptive.py [--problems A-2,E-100] [--budget 100000] [--grid fine|decades|few] [--json rows.json]
python benchmarks/adaptive.py --calls-only [--json calls.json]     # the default solver alone: to compare two commits

All kinds of oracles count alike. The default is run as a user would, `minimize(problem, x0=x0, y0=y0)`, and charged
until it says itself that it has converged; the others are watched from outside and stopped as soon as they are there
(see `grid_search.py` and `jaxopt_peer.py` for how, and for what else is in their favour). A search takes
minutes for each problem, so its outcome is kept in a file (--cache) and used again as long as the problem is the same.
"""

import argparse
import importlib.util
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax

import grid_search
import proxbi
from judge import TARGET, Judge
from proxbi import Result, minimize
from suite import SUITE, Case

jax.config.update("jax_enable_x64", True)
Row = dict[str, Any]
GRIDS = {
    "fine": (grid_search.INNER, grid_search.BETAS),
    "decades": (grid_search.INNER, grid_search.BETAS[::4]),
    "few": ([(k, k) for k in (1, 2, 5, 10, 20)], grid_search.BETAS[::4]),
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


def adaptive(result: Result, judge: Judge) -> Row:
    true = float(judge(result.x, result.y))
    row = {"calls": int(result.counts.total), "steps": result.state.step, "status": result.status.name}
    return row | {"stationarity": true, "solved": result.status.name == "CONVERGED" and true <= 1.05 * TARGET}


def paper(case: Case, solution: Any, budget: int, grid: str) -> Row:
    inner, betas = GRIDS[grid]
    best = grid_search.search(case, solution, budget, inner, betas, report=partial(print, "   ", flush=True))
    return best._asdict() | {"setting": str(best.setting)}


def jaxopt(case: Case, solution: Any, budget: int) -> Row:
    import jaxopt_peer  # which needs jaxopt, and that is no dependency

    return jaxopt_peer.search(case, grid_search.scale(case, solution), budget, report=partial(print, "   ", flush=True))


def measure(name: str, arguments: argparse.Namespace, cache: Cache) -> Row:
    case, grid = SUITE[name](), DEAR.get(name, arguments.grid)
    judge = Judge.of(case)
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


# Up to commit c198a2c no count held the calls of the certificate at the end. There all steps, its own included, go
# through `proxbi.chunk.advance`.
@contextmanager
def calls_seen() -> Iterator[Callable[[], int]]:
    """How many calls were made in here, as far as they can be seen from outside."""
    if importlib.util.find_spec("proxbi.chunk") is None:
        yield lambda: 0
        return
    chunk, seen = importlib.import_module("proxbi.chunk"), []
    advance = chunk.advance

    def counted(*arguments: Any) -> Any:
        done = advance(*arguments)
        seen.append(int(done.counts.total))
        return done

    chunk.advance = counted
    try:
        yield lambda: sum(seen)
    finally:
        chunk.advance = advance


def calls_only(name: str) -> Row:
    """The default solver with nothing set, and to the absolute stationarity that all are compared at."""
    case = SUITE[name]()
    judge = Judge.of(case)
    goals = {"nothing set": {}, "tol": {"tol": TARGET * float(judge.start)}}
    return {"problem": name, "h": case.kind, "kappa": case.kappa} | {
        goal: one_run(case, judge, settings) for goal, settings in goals.items()
    }


def one_run(case: Case, judge: Judge, settings: dict[str, float]) -> Row:
    with calls_seen() as seen:
        result = minimize(problem=case.problem, x0=case.x0, y0=case.y0, throw=False, **settings)
    at = case.exactly(result.x, result.y)
    return {
        "status": result.status.name,
        "calls": max(int(result.counts.total), seen()),
        "stationarity": float(judge(result.x, result.y)),
        "objective": float(at.value + case.problem.regularizer.value(result.x)),
        "seconds": result.seconds.run,
    }


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
    parser.add_argument("--calls-only", action="store_true", help="of the default solver, as JSON, and nothing else")
    arguments = parser.parse_args()
    unknown = set(arguments.problems.split(",")) - set(SUITE)
    if unknown:
        parser.error(f"--problems: no {', '.join(sorted(unknown))} among {', '.join(SUITE)}.")
    if arguments.calls_only:
        rows = [calls_only(name) for name in arguments.problems.split(",")]
        text = json.dumps({"package": str(Path(proxbi.__file__).parent), "rows": rows}, indent=1)
        print(text) if arguments.json is None else arguments.json.write_text(text)
        return
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
