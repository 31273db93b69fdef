"""How a process finds the others: what it is told, or what the launcher left in its environment.

`jax.distributed.initialize` knows Slurm and Open MPI before version 5; it does not read `JAX_NUM_PROCESSES` and
`JAX_PROCESS_ID`, and knows nothing of Open MPI 5. So all of it is looked up here, and handed over in full.
"""

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from threading import Timer
from typing import NamedTuple

import jax

from proxbi.distributed._ranks import leave_early

_FIRST_PORT, _PORTS = 61_440, 4_096  # the last ports there are; a job has one of them by its number, as in JAX itself
_LOOKED_FOR = (
    "JAX_COORDINATOR_ADDRESS with JAX_NUM_PROCESSES and JAX_PROCESS_ID; srun's SLURM_STEP_NODELIST, SLURM_NTASKS and "
    "SLURM_PROCID; mpirun's OMPI_COMM_WORLD_SIZE and OMPI_COMM_WORLD_RANK"
)


_LATER = 60  # seconds after which JAX itself gives up waiting, with a stack trace: later than we do


class Launch(NamedTuple):
    """One process among several."""

    coordinator_address: str
    """Where rank 0 listens, `host:port`."""
    num_processes: int
    process_id: int
    local_id: int | None
    """Its number among those of its machine, where the launcher says it: it then takes one GPU, that of this number."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 300,
) -> Launch:
    """Join the other processes of this run; before any JAX computation. A second call changes nothing.

    **Arguments:**

    - `coordinator_address`, `num_processes`, `process_id`: where rank 0 listens (`host:port`), how many processes there
      are, and which this one is. What is not given is looked for in the environment: JAX_COORDINATOR_ADDRESS,
      JAX_NUM_PROCESSES and JAX_PROCESS_ID; then what Open MPI's `mpirun` and Slurm's `srun` leave there.
    - `timeout`: seconds to wait for the others. If not all have come by then, the process ends with a sentence and exit
      code 1: JAX, which waits inside of compiled code, would abort it.

    On CPUs the processes talk through gloo, on NVIDIA GPUs through NCCL. There is no password: whoever reaches the port
    of rank 0 may join. Use a private network.

    SIGTERM ends a process as usual; during `minimize(..., callbacks=[Checkpoint(folder)])` it ends the run with a
    checkpoint first, on all ranks at the same step.

    **Returns:** the `Launch`.
    """
    launch = launch_of(
        os.environ,
        coordinator_address=coordinator_address,
        num_processes=num_processes,
        process_id=process_id,
    )
    if jax.distributed.is_initialized():
        if (jax.process_count(), jax.process_index()) != (launch.num_processes, launch.process_id):
            raise RuntimeError(
                f"initialize: this process is rank {jax.process_index()} of {jax.process_count()} already, and cannot "
                f"become rank {launch.process_id} of {launch.num_processes}."
            )
        return launch
    if _started():
        raise RuntimeError("initialize must be called before any JAX computation: put it first in the program.")
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX would catch SIGTERM for good, and wait to be asked about it: a process that hangs could not be ended by it.
    jax.config.update("jax_enable_preemption_service", False)
    if launch.process_id == 0 and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        _require_free(int(launch.coordinator_address.rpartition(":")[2]))
    try:
        with _ending_after(timeout, launch):
            jax.distributed.initialize(
                launch.coordinator_address,
                launch.num_processes,
                launch.process_id,
                local_device_ids=launch.local_id,
                cluster_detection_method="deactivate",
                initialization_timeout=timeout + _LATER,
            )
    except Exception as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ConnectionError(f"{_alone(launch)}: {line}") from error
    leave_early()
    return launch


def _alone(launch: Launch) -> str:
    return (
        f"rank {launch.process_id} of {launch.num_processes} could not join the others at {launch.coordinator_address}"
    )


def _require_free(port: int) -> None:
    """Refuse a port of rank 0 that another process has: JAX would crash."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        with closing(socket.create_server(("", port), family=family, dualstack_ipv6=dual)):
            pass
    except OSError as error:
        raise OSError(
            f"rank 0 cannot listen at port {port}: {os.strerror(error.errno or 0)}. Take another port, or end the "
            "process that has it, such as a rank 0 of an earlier run."
        ) from error


@contextmanager
def _ending_after(seconds: float, launch: Launch) -> Iterator[None]:
    """End this process if the body takes longer. It cannot be interrupted by an exception."""

    def end() -> None:
        print(
            f"{_alone(launch)} within {seconds} s: see that all {launch.num_processes} are started, each with a rank "
            "of its own, and that all reach rank 0 at this address.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def launch_of(
    environ: Mapping[str, str],
    *,
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Launch:
    """What is given, with what is missing taken from an environment.

    >>> launch_of({"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"})
    Launch(coordinator_address='gpu03:61447', num_processes=2, process_id=1, local_id=None)
    """
    found = _from_open_mpi(environ) or _from_slurm(environ)
    address = coordinator_address or environ.get("JAX_COORDINATOR_ADDRESS") or (found and found.coordinator_address)
    count = _first(num_processes, _integer(environ, "JAX_NUM_PROCESSES"), found and found.num_processes)
    rank = _first(process_id, _integer(environ, "JAX_PROCESS_ID"), found and found.process_id)
    values = {"coordinator_address": address or None, "num_processes": count, "process_id": rank}
    if missing := [name for name, value in values.items() if value is None]:
        raise ValueError(
            f"{' and '.join(missing)} must be given: no launcher left it in the environment. Looked for: {_LOOKED_FOR}."
        )
    assert address is not None
    assert count is not None
    assert rank is not None
    _require_address(address)
    if count < 1 or not 0 <= rank < count:
        raise ValueError(f"process_id must be in 0..num_processes - 1, got {rank} of {count}.")
    return Launch(address, count, rank, found.local_id if found else None)


class _Found(NamedTuple):
    coordinator_address: str | None
    num_processes: int
    process_id: int
    local_id: int | None


def _from_open_mpi(environ: Mapping[str, str]) -> _Found | None:
    """Open MPI tells how many there are and which this is, but not where rank 0 runs: that is known only where all of
    them run on one machine.
    """
    count, rank = _integer(environ, "OMPI_COMM_WORLD_SIZE"), _integer(environ, "OMPI_COMM_WORLD_RANK")
    if count is None or rank is None:
        return None
    alone = _integer(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") == count
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or "0"
    address = f"127.0.0.1:{_port(job)}" if alone else None
    return _Found(address, count, rank, _integer(environ, "OMPI_COMM_WORLD_LOCAL_RANK"))


def _from_slurm(environ: Mapping[str, str]) -> _Found | None:
    """`srun` sets all of these; `sbatch` and `salloc` alone do not name the nodes of a step."""
    nodes, job = environ.get("SLURM_STEP_NODELIST"), environ.get("SLURM_JOB_ID")
    count, rank = _integer(environ, "SLURM_NTASKS"), _integer(environ, "SLURM_PROCID")
    if not nodes or not job or count is None or rank is None:
        return None
    return _Found(f"{first_node(nodes)}:{_port(job)}", count, rank, _integer(environ, "SLURM_LOCALID"))


def first_node(nodes: str) -> str:
    """The first of a list of nodes as Slurm writes it.

    >>> first_node("gpu[03-04,07],login1"), first_node("a1,a2"), first_node("rack[2-3]node[01-16]")
    ('gpu03', 'a1', 'rack2node01')
    """
    name, depth = "", 0
    for letter in nodes:
        if letter == "," and depth == 0:
            break
        depth += (letter == "[") - (letter == "]")
        name += letter
    return re.sub(r"\[([^,\]-]*)[^\]]*\]", r"\1", name)


def _port(job: str) -> int:
    """A port for the job, the same in all of its processes."""
    digits = re.sub(r"\D", "", job)
    return _FIRST_PORT + int(digits or 0) % _PORTS


def _require_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"coordinator_address must be host:port, got {address!r}.")


def _integer(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name)
    if value is None or value == "":
        return None
    if not re.fullmatch(r"\d+", value):
        raise ValueError(f"{name} must be a number, got {value!r} in the environment.")
    return int(value)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _started() -> bool:
    from jax._src.xla_bridge import backends_are_initialized

    return bool(backends_are_initialized())
