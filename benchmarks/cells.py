"""How much cheaper the cells of Table 1 are together than one after another, in one process, interleaved.

python benchmarks/cells.py [--steps 3] [--repeats 3] [--dataset mnist|digits] [--p 0.1,0.2,0.4]
"""

import argparse
import statistics
import time

from proxbi.experiments import paper, protocols


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="outer steps of each run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--p", default="", help="shares of wrong labels; all three if left out")
    arguments = parser.parse_args()
    splits = paper.mnist_splits(None) if arguments.dataset == "mnist" else paper.digits_splits()
    protocol = protocols.PROTOCOLS["published"]._replace(steps=arguments.steps)
    runs = [paper.Run(cell, None) for cell in protocols.choose("", arguments.p, "", False)]

    def seconds(batch: int) -> float:
        start = time.perf_counter()
        paper.run(runs, protocol, splits, batch=batch)
        return time.perf_counter() - start

    seconds(1), seconds(len(runs))  # compile
    ratios = []
    for _ in range(arguments.repeats):
        one_by_one, together = seconds(1), seconds(len(runs))
        ratios.append(one_by_one / together)
        print(f"{len(runs)} cells, {arguments.steps} steps: one by one {one_by_one:.2f} s, together {together:.2f} s")
    print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
