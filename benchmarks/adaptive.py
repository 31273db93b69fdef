"""Oracle calls to a true relative stationarity of 1e-6: the default solver, with nothing set, against others.

python benchmarks/adaptive.py [--grid fine|decades|few]            # the paper's method and jaxopt, at their best
python benchmarks/adaptive.py --peers lbfgsb,fista,adam            # general methods, on exact hypergradients
python benchmarks/adaptive.py --calls-only [--json calls.json]     # the default solver alone: to compare two commits

All kinds of oracles count alike. The default is run as a user would, `minimize(problem, x0=x0, y0=y0)`, and charged
until it says itself that it has converged, its certificate included; the others are watched from outside and stopped
as soon as they are there (see `grid_search.py`, `jaxopt_peer.py` and `peers.py` for how, and for what else is in their
favour). A search takes minutes for each problem, so its outcome is kept in a file (--cache) and used again as long as
the problem is the same.
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
from peers import PEERS
from proxbi import minimize
from suite import SUITE, Case

jax.config.update("jax_enable_x64", True)
Row = dict[str, Any]
GRIDS = {
    "fine": (grid_search.INNER, grid_search.BETAS),
    "decades": (grid_search.INNER, grid_search.BETAS[::4]),
    "few": ([(k, k) for k in (1, 2, 5, 10, 20)], grid_search.BETAS[::4]),
}
"""Pairs of T and N, and outer steps: 2,100, 600 and 120 settings with the four kinds of lower steps."""
DEAR = {"cleaning": ("decades", 3_000)}
"""Where a call takes a thousand times as long, neither the grid nor the budget of `peers` is larger than this."""
PEERS_BUDGET = 20_000
ALLOWED = 1.05
"""How far the default may miss the target: its own measure of stationarity is not quite the judge's."""


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


def paper(case: Case, solution: Any, budget: int, grid: str) -> Row:
    inner, betas = GRIDS[grid]
    best = grid_search.search(case, solution, budget, inner, betas, report=partial(print, "   ", flush=True))
    return best._asdict() | {"setting": str(best.setting)}


def jaxopt(case: Case, solution: Any, budget: int) -> Row:
    import jaxopt_peer  # which needs jaxopt, and that is no dependency

    return jaxopt_peer.search(case, grid_search.scale(case, solution), budget, report=partial(print, "   ", flush=True))


def general(peer: str, case: Case, solution: Any, budget: int) -> Row | None:
    return PEERS[peer](case, budget)


def measure(name: str, arguments: argparse.Namespace, cache: Cache) -> Row:
    case = SUITE[name]()
    grid, most = DEAR.get(name, (arguments.grid, PEERS_BUDGET))
    judge = Judge.of(case)
    own, solution = one_run(case, judge, {})
    row: Row = {"problem": name, "kappa": case.kappa, "h": case.kind, "adaptive": own}
    searches: dict[str, tuple[str, int, Any]] = {
        "paper": (f"paper, {grid}", arguments.budget, partial(paper, grid=grid)),
        "jaxopt": ("jaxopt", arguments.budget, jaxopt),
    }
    searches |= {peer: (peer, min(most, arguments.budget), partial(general, peer)) for peer in PEERS}
    for peer in arguments.peers.split(","):
        search_name, budget, search = searches[peer]
        key, start = f"{name}: {search_name}", float(judge.start)
        known = cache.get(key, budget, start)
        if known is None:  # the solution found gives the units of their grids, in hindsight
            known = search(case, solution, budget)
            if known is None:  # not made for such an h
                row[peer] = None
                continue
            known |= {"budget": budget, "start": start}
            cache.put(key, known)
        row[peer] = known | {"ratio": own["calls"] / (known["calls"] or known["budget"])}
    return row


# Up to commit c198a2c no count held the calls of the certificate at the end. There all steps, its own included, go
# through `proxbi.chunk.advance`.
@contextmanager
def calls_seen() -> Iterator[Callable[[], int]]:
    """How many calls were made in here, as far as they can be seen from outside."""
    if importlib.util.find_spec("proxbi.chunk") is None:
        yield lambda: 0
        return
    chunk: Any = importlib.import_module("proxbi.chunk")
    advance, seen = chunk.advance, []

    def counted(*arguments: Any) -> Any:
        done = advance(*arguments)
        seen.append(int(done.counts.total))
        return done

    chunk.advance = counted
    try:
        yield lambda: sum(seen)
    finally:
        chunk.advance = advance


def one_run(case: Case, judge: Judge, settings: dict[str, Any]) -> tuple[Row, Any]:
    """The default solver: what it took and where it ended."""
    with calls_seen() as seen:
        result = minimize(problem=case.problem, x0=case.x0, y0=case.y0, throw=False, **settings)
    first, last = (case.exactly(x, result.y).value + case.problem.regularizer.value(x) for x in (case.x0, result.x))
    stationarity = float(judge(result.x, result.y))
    row = {
        "status": result.status.name,
        "calls": max(int(result.counts.total), seen()),
        "stationarity": stationarity,
        "objective": float(last),
        "gain": float(first - last),
        "seconds": result.seconds.run,
        "solved": result.status.name == "CONVERGED" and stationarity <= ALLOWED * TARGET,
    }
    return row, result.x


def calls_only(name: str) -> Row:
    """The default solver with nothing set, and to the absolute stationarity that all are compared at."""
    case = SUITE[name]()
    judge = Judge.of(case)
    goals: dict[str, Any] = {"nothing set": {}, "tol": {"tol": TARGET * float(judge.start)}}
    return {"problem": name, "h": case.kind, "kappa": case.kappa} | {
        goal: one_run(case, judge, settings)[0] for goal, settings in goals.items()
    }


def line(row: Row) -> str:
    own = row["adaptive"]
    text = f"{row['problem']:17s}{row['kappa']:8.3g}  {row['h']:19s}{own['calls']:6d}{' ' if own['solved'] else '!'}"
    for peer in ("paper", "jaxopt", *PEERS):
        if peer in row and row[peer] is None:
            text += f"{'-':>10s}{'':7s}"
        elif peer in row:
            found = row[peer]
            calls = f"> {found['budget']}" if found["calls"] is None else str(found["calls"])
            text += f"{calls:>10s}{elsewhere(own, found)}{'<' if found['calls'] is None else ' '}{found['ratio']:5.3f}"
            text += f"  {found['setting']}" if found["setting"] else ""
    return text


def elsewhere(own: Row, found: Row) -> str:
    """Whether a peer ended at another objective: + if it is worse by a hundredth of the gain, - if better."""
    if found["calls"] is None or "objective" not in found:
        return " "
    change = found["objective"] - own["objective"]
    return " " if abs(change) <= 0.01 * abs(own["gain"]) else "+" if change > 0 else "-"


def summary(rows: list[Row], peer: str) -> str:
    ratios = {row["problem"]: row[peer]["ratio"] for row in rows if row.get(peer)}
    worst = max(ratios, key=ratios.__getitem__)
    return f"adaptive / {peer}: median {statistics.median(ratios.values()):.3f}, largest {ratios[worst]:.3f} ({worst})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(SUITE), help="names of the suite, separated by commas")
    parser.add_argument(
        "--budget", type=int, default=100_000, help="calls after which a setting is given up (general methods: 20,000)"
    )
    parser.add_argument("--grid", choices=tuple(GRIDS), default="fine", help="of the search for the paper's best")
    parser.add_argument("--peers", default="paper,jaxopt", help="what to compare with")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "proxbi" / "adaptive.json")
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--calls-only", action="store_true", help="of the default solver, as JSON, and nothing else")
    arguments = parser.parse_args()
    unknown = set(arguments.problems.split(",")) - set(SUITE)
    if unknown:
        parser.error(f"--problems: no {', '.join(sorted(unknown))} among {', '.join(SUITE)}.")
    unknown = set(arguments.peers.split(",")) - {"paper", "jaxopt", *PEERS}
    if unknown:
        parser.error(f"--peers: no {', '.join(sorted(unknown))} among paper, jaxopt, {', '.join(PEERS)}.")
    if arguments.calls_only:
        rows = []
        for name in arguments.problems.split(","):
            rows.append(calls_only(name))
            print(json.dumps(rows[-1]), flush=True)
            if arguments.json:  # as far as it got
                known = {"package": str(Path(proxbi.__file__).parent), "rows": rows}
                arguments.json.write_text(json.dumps(known, indent=1))
        return
    cache, rows = Cache(arguments.cache), []
    for name in arguments.problems.split(","):
        rows.append(measure(name, arguments, cache))
        print(line(rows[-1]), flush=True)
    print("calls; '!' marks a run that did not reach the target, '>' a search in which no setting did; ratio of calls")
    print("+ and - mark peers that ended at an objective worse or better than the default's by a hundredth of its gain")
    for peer in arguments.peers.split(","):
        if any(row.get(peer) for row in rows):
            print(summary(rows, peer))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
