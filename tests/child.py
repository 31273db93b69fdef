"""A run in a process of its own, to be killed, interrupted or compared by the tests: `child.py FOLDER STEPS [HOW]`."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import proxbi
from proxbi import checkpoint

jax.config.update("jax_enable_x64", True)

MODES = {"a", "b", "c", "d"}  # a set of strings, whose order changes from process to process


def upper(x: Any, y: Any, data: Any) -> Any:
    assert MODES & {"a", "b", "c", "d"}
    return 0.5 * jnp.sum((y - data["d"]) ** 2)


def lower(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * jnp.sum(data["a"] * (y - x) ** 2)


DATA = {"a": jnp.array([1.0, 0.5, 0.25]), "d": jnp.array([1.0, -2.0, 0.3])}
PROBLEM = proxbi.Problem(upper, lower, proxbi.L1(0.1), DATA)
SOLVER = proxbi.paper_solver("proximal BiO-AIDm", alpha=1.0, beta=0.01, eta=0.3, T=3)
X0, Y0 = jnp.zeros(3), jnp.ones(3)


def solve(steps: int, **options: Any) -> proxbi.Result:
    """The run: everything but the folder is the same in every process."""
    return proxbi.minimize(PROBLEM, X0, Y0, SOLVER, steps=steps, every=5, **options)


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(where: str, after: int) -> None:
    """Make this process kill itself at the `after`-th write: while the bytes go out, before or after the rename."""
    calls = [0]

    def armed(action: Any, before: bool) -> Any:
        def call(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == after and before:
                _die()
            answer = action(*arguments)
            if calls[0] == after:
                _die()
            return answer

        return call

    if where == "bytes":  # half of the file is on the disk
        real = checkpoint.to_safetensors

        def torn(*arguments: Any) -> bytes:
            calls[0] += 1
            content = real(*arguments)
            if calls[0] == after:
                os.fsync = _die
                return content[: len(content) // 2]
            return content

        checkpoint.to_safetensors = torn
    else:
        Path.replace = armed(Path.replace, before=where == "before rename")


def main(folder: str, steps: str, *how: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been started with Ctrl-C ignored
    if how:
        die_in(how[0], int(how[1]))

    def say(row: dict[str, Any], snapshot: Any) -> None:
        print(row["step"], flush=True)

    result = solve(int(steps), callbacks=[proxbi.Checkpoint(folder), say], resume=folder)
    print(result.status.name, result.state.step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
