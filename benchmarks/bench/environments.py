"""One environment for each peer, made when it is first needed, and the processes that run in them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

WORKERS = Path(__file__).parent / "workers"
SOURCES = Path(__file__).parents[2] / "src"
TORCH = "torch==2.13.0"


class Package(NamedTuple):
    """What a peer needs."""

    name: str
    needs: tuple[str, ...]


PEERS = [
    Package("jaxopt", ("jaxopt==0.8.5", "jax=={jax}")),
    Package("optimistix", ("optimistix==0.1.0", "jax=={jax}")),
    Package("torch", (TORCH, "numpy")),
    Package("torchopt", ("torchopt==0.7.3", TORCH, "numpy")),
    Package("betty", ("betty-ml", TORCH, "numpy")),  # the newest that the running Python may have
    Package("boat", ("boat-torch==1.1.1", TORCH)),
]
OURS = "proxbi"


def interpreter(package: Package, folder: Path) -> Path | str:
    """The Python of a peer's environment, made if need be; or a sentence that says why there is none."""
    place, needs = folder / package.name, [need.format(jax=version("jax")) for need in package.needs]
    python, done = place / "bin" / "python", place / "installed.json"
    if done.exists() and json.loads(done.read_text()) == needs:
        return python
    print(f"installing {', '.join(needs)}", flush=True)
    for command in ([sys.executable, "-m", "venv", "--clear", place], [python, "-m", "pip", "install", "-q", *needs]):
        made = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if made.returncode:
            lines = made.stderr.strip().splitlines() or ["no reason given"]
            return f"could not be installed: {lines[-1]}"
    done.write_text(json.dumps(needs))
    return python


class Worker:
    """A process that answers each line of JSON by one."""

    def __init__(self, name: str, python: Path | str, gpu: bool, log: Path):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, log
        platform = {"JAX_PLATFORMS": "cuda,cpu" if gpu else "cpu", "PYTHONPATH": str(SOURCES)}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [str(python), str(WORKERS / f"{name}_worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | platform,
            )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order, and wait for the answer."""
        self.send(**order)
        return self.answer()

    def need(self, **order: Any) -> dict[str, Any]:
        """`ask`, where a failure is an error."""
        found = self.ask(**order)
        if "failed" in found:
            raise RuntimeError(f"{self.name}: {found['failed']}")
        return found

    def send(self, **order: Any) -> None:
        """An order. Whether the worker still lives will be seen from its answer."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """To the last order; that of a worker that has died is the last line of what it wrote."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        lines = self.log.read_text().strip().splitlines() or ["it ended without a word"]
        return {"failed": lines[-1]}

    def end(self) -> None:
        """Close its input, which ends it."""
        self.process.communicate()


@contextmanager
def workers(names: list[str], pythons: dict[str, Path | str], gpu: bool, logs: Path) -> Iterator[dict[str, Worker]]:
    """Processes, ended in any case."""
    started = {name: Worker(name, pythons[name], gpu, logs / f"{name}.txt") for name in names}
    try:
        yield started
    finally:
        for worker in started.values():
            worker.end()
