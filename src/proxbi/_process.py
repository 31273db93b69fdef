"""Whether JAX works in this process: it does not in one forked after JAX has started, where its threads are gone."""

import os
import sys


class _Process:
    broken = False


def _after_fork() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    _Process.broken = _Process.broken or (bridge is not None and bridge.backends_are_initialized())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def require_a_working_jax() -> None:
    """Raise an error in place of waiting for ever."""
    if _Process.broken:
        raise RuntimeError(
            "This process was forked from one in which JAX had started, and JAX would wait for ever in it: start "
            'processes with multiprocessing.get_context("spawn"), or with joblib\'s default backend.'
        )
