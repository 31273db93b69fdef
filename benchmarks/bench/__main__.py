"""The benchmark: proxbi and its peers on one problem, the floor, growth, races, sweeps, the first second, under load.

make bench                                    # all parts; the first time it makes the environments of the peers
make bench ARGS=--quick                       # small sizes: minutes on an idle machine
python benchmarks/bench --here --gpu          # peers as they are installed where this runs; on a GPU
python benchmarks/bench --only cold --against c198a2c

Each contender is a process in an environment of its own (`workers/`); all of them take turns. A peer whose
hypergradient is not the true one is listed with its error, and not timed. Writes bench.csv, bench.svg, bench.html.
"""

import argparse
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import pages
from bench.cold import cold_start
from bench.environments import OURS, PEERS, interpreter
from bench.parts import Row, Setup, growth, one_step, race, sweeping, under_load

PARTS = ("step", "growth", "race", "sweep", "cold", "load")
ROUNDS, QUICK_ROUNDS = 15, 3
ROWS, QUICK_ROWS = 20_000, 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--gpu", action="store_true", help="on the GPU, where there is one")
    parser.add_argument("--here", action="store_true", help="peers as this Python has them, without environments")
    parser.add_argument("--peers", nargs="*", choices=[peer.name for peer in PEERS], help="all by default")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--against", metavar="COMMIT", help="compare the first second with that of a commit")
    parser.add_argument("--rows", type=int, help="of the outer step")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="of environments and results")
    chosen = parser.parse_args()
    folder = chosen.folder.absolute()
    pythons: dict[str, Path | str] = {OURS: Path(sys.executable), "floor": Path(sys.executable)}
    for peer in PEERS:
        if chosen.peers is None or peer.name in chosen.peers:
            needed = {"step", "race"} & set(chosen.only)
            pythons[peer.name] = Path(sys.executable) if chosen.here or not needed else interpreter(peer, folder)
    rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS)
    setup = Setup(pythons, chosen.quick, chosen.gpu, folder, rounds)
    parts = {
        "step": lambda: one_step(setup, chosen.rows or (QUICK_ROWS if chosen.quick else ROWS)),
        "growth": lambda: growth(setup),
        "race": lambda: race(setup),
        "sweep": lambda: sweeping(setup),
        "cold": lambda: cold_start(setup, chosen.against),
        "load": lambda: under_load(setup),
    }
    rows: list[Row] = []
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    for name in chosen.only:
        begin = time.perf_counter()
        found = attempted(name, parts[name])
        rows += found
        for r in found:
            show(r)
        print(f"{name} took {time.perf_counter() - begin:.0f} s\n", flush=True)
        pages.write(rows, folder, machine)  # each time: what comes next may be interrupted
    print(f"written to {folder}")


def attempted(name: str, part: Callable[[], list[Row]]) -> list[Row]:
    """A part that breaks is a row, and the others go on."""
    try:
        return part()
    except Exception as error:
        traceback.print_exc()
        return [told(name, OURS, "failed", f"{type(error).__name__}: {error}")]


def show(r: Row) -> None:
    value = f"{r['median']:10.4g} ({r['low']:.4g} to {r['high']:.4g}) {r['unit']}" if "median" in r else ""
    size = f" at {r['size']:,.0f}" if "size" in r else ""
    print(f"  {r['part']:<14}{r['name']:<18}{r['what'] + size:<36}{value}  {r.get('note', '')}")


if __name__ == "__main__":
    main()
