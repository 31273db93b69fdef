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
begin = time.perf_counter()
import jax, equinox
between = time.perf_counter()
import proxbi
proxbi.minimize
end = time.perf_counter()
"""
"""What takes long is imported when the first name is asked for."""
REPORT = '\nimport json\nprint(json.dumps({"import": end - between, "jax": between - begin, "example": done - end}))'


def example() -> str:
    """The first program of the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert found is not None, "the README has an example"
    return found.group(1).replace("print(", "str(")


def once(sources: Path) -> dict[str, float]:
    code = f"{IMPORT}{example()}\ndone = time.perf_counter(){REPORT}"
    environment = os.environ | {"PYTHONPATH": str(sources), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


def unpacked(commit: str, folder: Path) -> Path:
    """The sources of a commit."""
    place = folder / "against" / commit
    place.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    return place / "src"


def cold_start(setup: Setup, against: str | None) -> list[Row]:
    """Seconds of each, and the ratios of what was run in one turn."""
    sources = {OURS: SOURCES} | ({against: unpacked(against, setup.folder)} if against else {})
    turns = [{name: once(place) for name, place in sources.items()} for _ in range(max(3, setup.rounds // 2))]
    found = []
    for name in sources:
        for what, meaning in (("import", "import, beyond jax and equinox"), ("example", "README example, first run")):
            found.append(row("cold", name, meaning, [turn[name][what] for turn in turns], "s"))
    if against:
        for what in ("import", "example"):
            ratios = [turn[OURS][what] / turn[against][what] for turn in turns]
            found.append(row("cold", OURS, f"{what}, over {against}", ratios, "ratio"))
    return found
