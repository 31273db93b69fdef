"""The first second: what it takes to import proxbi, and to run the example of the README, in fresh processes.

With `--against COMMIT` the sources of that commit are unpacked beside, and both take turns: on a machine that others
use, only ratios mean something. Nothing compiled is kept from one process to the next.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bench.environments import OURS, SOURCES
from bench.parts import Row, Setup, row

ROOT = SOURCES.parent
IMPORT = """
import time
def now(): return time.perf_counter(), time.process_time()
begin = now()
import jax, equinox
between = now()
import proxbi
proxbi.minimize
end = now()
"""
"""What takes long is imported when the first name is asked for."""
REPORT = """
done = now()
import json
print(json.dumps([[b - a for a, b in zip(*span)] for span in ((between, end), (end, done))]))
"""
WHAT = ("import, beyond jax and equinox", "README example, first run")
CLOCKS = ("", ", processor time")
"""Of the wall, and of all processors together, which other processes disturb less."""


def example(root: Path) -> str:
    """The first program of a README, which does not print."""
    found = re.search(r"```python\n(.*?)```", (root / "README.md").read_text(), re.S)
    assert found is not None, "a README has an example"
    return found.group(1).replace("print(", "_ = (")


def once(root: Path) -> dict[str, float]:
    """Seconds, by what was done and by which clock."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", f"{IMPORT}{example(root)}{REPORT}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    times = json.loads(done.stdout)
    return {f"{what}{clock}": times[i][k] for i, what in enumerate(WHAT) for k, clock in enumerate(CLOCKS)}


def unpacked(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    place = folder / "against" / commit
    place.mkdir(parents=True, exist_ok=True)
    command = ["git", "archive", commit, "src", "README.md"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    return place


def cold_start(setup: Setup, against: str | None) -> list[Row]:
    """Seconds of each, and the ratios of what was run in one turn."""
    places = {OURS: ROOT} | ({against: unpacked(against, setup.folder)} if against else {})
    turns = [{name: once(place) for name, place in places.items()} for _ in range(max(3, setup.rounds // 2))]
    found = [
        row("cold", name, what, [turn[name][what] for turn in turns], "s") for name in places for what in turns[0][name]
    ]
    if against:
        for what in turns[0][OURS]:
            ratios = [turn[OURS][what] / turn[against][what] for turn in turns]
            found.append(row("cold", OURS, f"{what}, over {against}", ratios, "ratio"))
    return found
