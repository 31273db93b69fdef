"""The cleaner on Parquet files with a local Dask cluster: time, memory of all processes together, and how far its flags
are from those of one process that has all rows in memory.

python benchmarks/large_tables.py --rows 1000000 --compare
python benchmarks/large_tables.py --rows 1000000 --kill --compare      # a worker is killed in the middle
python benchmarks/large_tables.py --rows 1000000 --kill --compare --fit-all
python benchmarks/large_tables.py --rows 20000000 --files 40           # what issue 16 asks for: within 4 GB in all

Memory is the sum of what each process holds for itself (USS), looked at ten times a second.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from proxbi.cleaning.files.job import Outputs, clean_file
from proxbi.cleaning.files.tables import Roles
from proxbi.cleaning.large.adding import ADDING
from proxbi.cleaning.large.job import JUDGING, clean_files

CLASSES, WRONG, TRUSTED = 5, 0.2, 0.01
ROLES = Roles("label", "gold")


def make(folder: Path, rows: int, columns: int, files: int) -> None:
    """Clouds of which a fifth of the labels are wrong, one file at a time."""
    folder.mkdir(parents=True)
    centres = np.random.default_rng(0).normal(size=(CLASSES, columns)) * 0.7
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        draw = np.random.default_rng([1, number])
        truth = draw.integers(CLASSES, size=len(part))
        features = (draw.normal(size=(len(part), columns)) + centres[truth]).astype(np.float32)
        wrong = draw.random(len(part)) < WRONG
        frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(columns)])
        frame["label"] = np.where(wrong, (truth + 1 + draw.integers(CLASSES - 1, size=len(part))) % CLASSES, truth)
        frame["gold"] = ~wrong & (draw.random(len(part)) < TRUSTED)
        frame.to_parquet(folder / f"{number:04d}.parquet", index=False)


class Memory:
    """The most that this process and its children held at one time."""

    def __init__(self) -> None:
        self.most, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.1):
            held = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    held += process.memory_full_info().uss
                except psutil.Error:  # it has just ended
                    continue
            self.most = max(self.most, held)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def killer(wanted: bool, when: str) -> Any:
    """Kills one worker once, when the first file of this stage is done."""
    done: list[int] = []

    def progress(stage: str, share: float) -> None:
        print(f"  {time.strftime('%H:%M:%S')} {stage} {share:.0%}", flush=True)
        if wanted and stage == when and not done:
            for child in psutil.Process().children(recursive=True):
                if any("spawn_main" in word for word in child.cmdline()):
                    done.append(child.pid)
                    os.kill(child.pid, signal.SIGKILL)
                    print(f"  killed worker {child.pid}", flush=True)
                    return

    return progress


def flags(folder: Path) -> np.ndarray:
    return np.concatenate(
        [pd.read_parquet(path, columns=["proxbi_issue"])["proxbi_issue"] for path in sorted(folder.glob("*.parquet"))]
    )


def f1(folder: Path) -> float:
    """Of the flags; which labels are wrong is in no file, but drawn as when they were made."""
    found, wrong = flags(folder / "out"), []
    paths = sorted((folder / "data").glob("*.parquet"))
    for number, path in enumerate(paths):
        labels = pd.read_parquet(path, columns=["label"])["label"].to_numpy()
        wrong.append(labels != np.random.default_rng([1, number]).integers(CLASSES, size=len(labels)))
    truth = np.concatenate(wrong)
    return float(2 * np.sum(found & truth) / (np.sum(found) + np.sum(truth)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--columns", type=int, default=20)
    options.add_argument("--files", type=int, default=20)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--engine", choices=["blocks", "dask"], default="dask")
    options.add_argument("--compare", action="store_true", help="with one process that has all rows in memory")
    options.add_argument("--kill", action="store_true", help="a worker, after the first file")
    options.add_argument("--fit-all", action="store_true", help="rows, and not only those that are learned from")
    options.add_argument("--folder", type=Path, default=None, help="for the files, which are kept there")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="proxbi-large-"))
    if not (folder / "data").exists():
        make(folder / "data", given.rows, given.columns, given.files)
    shutil.rmtree(folder / "out", ignore_errors=True)
    start = time.perf_counter()
    workers = given.workers if given.engine == "dask" else None
    with Memory() as memory:
        found = clean_files(
            folder / "data",
            ROLES,
            folder / "out",
            engine=given.engine,
            workers=workers,
            fit_all=given.fit_all,
            progress=killer(given.kill, ADDING if given.fit_all else JUDGING),
        ).summary
    told = {
        "rows": given.rows,
        "seconds": round(time.perf_counter() - start, 1),
        "gigabytes of all processes": round(memory.most / 1e9, 2),
        "headline": found["headline"],
        "F1": round(f1(folder), 4),
    }
    if given.compare:
        start = time.perf_counter()
        pd.read_parquet(folder / "data").to_parquet(folder / "whole.parquet", index=False)
        one = clean_file(
            folder / "whole.parquet", ROLES, Outputs(folder / "one.parquet"), fit_all=given.fit_all
        ).summary
        told["in one process"] = one["headline"]
        told["its seconds"] = round(time.perf_counter() - start, 1)
        told["its gigabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
        ours, theirs = flags(folder / "out"), pd.read_parquet(folder / "one.parquet")["proxbi_issue"].to_numpy()
        told["flags that differ, of rows"] = float(np.mean(ours != theirs))
        told["flags that differ, of flags"] = float(np.sum(ours != theirs) / max(1, theirs.sum()))
    print(json.dumps(told, indent=2))
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
