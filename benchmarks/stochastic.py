"""Row derivatives until the exact stationarity is 1e-3 of that at x0: our solvers as they come, with nothing tuned, and
others at the best of their published step grids (benchopt/benchmark_bilevel, config/quadratics and config/ijcnn1).

    python benchmarks/stochastic.py --case quadratic --seeds 3
    python benchmarks/stochastic.py --case logistic --h      # with h = 0.05 |x|_1, theirs by subgradients
"""

import argparse
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stochastic_peers as peers
from proxbi import L1, AdaptiveProxBiO, ProxSABA, ProxSOBA, ProxSRBA, Zero, minimize
from stochastic_problems import CROSS, MU, Case, logistic, quadratic

TARGET = 1e-3
BUDGET = 150  # passes over the lower rows
LOOKS = 60  # at each run: how finely the answer is known
STRENGTH = 0.05
RATIOS = {"quadratic": (0.1, 1.0, 10.0, 100.0), "logistic": (0.01, 0.0316, 0.1, 0.316, 1.0)}
STEP_SIZES = {"quadratic": (0.01, 0.1), "logistic": (0.125, 0.25, 0.5, 1.0, 2.0)}
PEERS: dict[str, tuple[Any, dict[str, tuple[float, ...]]]] = {
    "SOBA": (peers.soba, {"decay": (0.0, 0.5)}),
    "SABA": (peers.saba, {"decay": (0.0,)}),
    "SRBA": (peers.srba, {"decay": (0.0,), "period": (0.5, 8.0, 64.0)}),
    "stocBiO": (peers.stocbio, {"decay": (0.0, 0.5)}),
    "MRBO": (peers.mrbo, {}),
    "F2SA": (peers.f2sa, {"decay": (0.0, 0.5), "growth": (0.01, 0.1, 1.0)}),
}
OURS = {
    "ProxSRBA()": lambda steps: ProxSRBA(),
    "ProxSABA()": lambda steps: ProxSABA(),
    "ProxSOBA(half_life=steps / 10)": lambda steps: ProxSOBA(half_life=steps / 10),
    "AdaptiveProxBiO(), all rows": lambda steps: AdaptiveProxBiO(),
}


def cases(asked: argparse.Namespace, seed: int) -> Case:
    regularizer = L1(STRENGTH) if asked.h else Zero()
    if asked.case == "quadratic":
        numbers = {"mu": asked.mu, "cross": asked.cross, "noise": asked.noise}
        return quadratic(seed, tuple(asked.rows), tuple(asked.unknowns), regularizer, **numbers)
    return logistic(seed, (2048, 8192), 20, regularizer)


def gap(case: Case, x: Any) -> Any:
    """|x - prox(x - d)|: |d| for h = 0."""
    return jnp.linalg.norm(x - case.problem.regularizer.prox(x - case.hypergradient(x), 1.0))


def grid(name: str, options: dict[str, tuple[float, ...]]) -> Iterator[dict[str, float]]:
    whole = {"step_size": STEP_SIZES[name], "ratio": RATIOS[name], "decay": (0.0,)} | options
    for values in product(*whole.values()):
        yield dict(zip(whole, values, strict=True))


def peer_rows(case: Case, peer: Any, settings: list[dict[str, float]], seed: int) -> tuple[float, dict[str, float]]:
    """Passes over the lower rows until the target, by the best setting of the grid; infinity where none gets there."""
    count, key = len(case.problem.data.lower), jax.random.key(seed)
    start = gap(case, case.x0)
    stacked = {name: jnp.array([one[name] for one in settings]) for name in settings[0]}
    cheapest = min(float(peer(case.problem, case.x0, case.y0, key, one)[2]) for one in settings)
    chunk = max(int(BUDGET * count / cheapest / LOOKS), 1)

    @jax.jit
    def advance(states: Any, first: Any) -> Any:
        def one(state: Any, p: Any) -> Any:
            step = peer(case.problem, case.x0, case.y0, key, p)[1]

            def body(t: Any, state: Any) -> Any:
                return step(state, t.astype(float), jax.random.fold_in(key, t))

            state = jax.lax.fori_loop(first, first + chunk, body, state)
            return state, gap(case, state[0])

        return jax.lax.map(lambda both: one(*both), (states, stacked))  # one by one: a vmap would run both branches

    states = jax.vmap(lambda p: peer(case.problem, case.x0, case.y0, key, p)[0])(stacked)
    rows = np.array([float(peer(case.problem, case.x0, case.y0, key, one)[2]) for one in settings])
    best, which = np.inf, settings[0]
    for number in range(LOOKS):
        states, gaps = advance(states, jnp.int32(number * chunk))
        cost = (number + 1) * chunk * rows / count
        there = (np.asarray(gaps) <= TARGET * float(start)) & (cost <= BUDGET)
        if there.any():
            winner = int(np.flatnonzero(there)[np.argmin(cost[there])])
            if cost[winner] < best:
                best, which = float(cost[winner]), settings[winner]
        if best <= cost.min():
            break
    return best, which


def our_rows(case: Case, make: Any, seed: int) -> float:
    count, start = len(case.problem.data.lower), float(gap(case, case.x0))
    look = jax.jit(lambda x: gap(case, x))
    steps = BUDGET * count // (4 * peers.BATCH)
    solver = make(steps)
    reached = []

    def judge(row: dict[str, Any], snapshot: Any) -> bool:
        there = float(look(snapshot.state.x)) <= TARGET * start
        if there:
            reached.append(row["rows"] / count)
        return there or row["rows"] > BUDGET * count

    every = 1 if isinstance(solver, AdaptiveProxBiO) else max(steps // LOOKS // 2, 1)
    start_at = case.x0, case.y0
    minimize(
        case.problem,
        *start_at,
        solver,
        steps=steps,
        every=every,
        callbacks=[judge],
        throw=False,
        key=jax.random.key(seed),
    )
    return reached[0] if reached else np.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=["quadratic", "logistic"], default="quadratic")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--h", action="store_true", help="with h = 0.05 |x|_1")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rows", type=int, nargs=2, default=(1024, 16384), help="of quadratic: upper and lower rows")
    parser.add_argument("--unknowns", type=int, nargs=2, default=(10, 100), help="of quadratic: entries of x and y")
    parser.add_argument("--mu", type=float, default=MU, help="of quadratic: the smallest curvature; the largest is 1")
    parser.add_argument("--cross", type=float, default=CROSS, help="of quadratic: the size of the cross terms")
    parser.add_argument("--noise", type=float, default=1.0, help="of quadratic: the size of the linear terms of rows")
    parser.add_argument("--only", nargs="+", default=(), help="names of solvers, such as 'ProxSABA()' SABA")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)

    chosen = asked.only or (*OURS, *PEERS)
    jax.config.update("jax_enable_x64", True)
    print(f"{asked.case}: passes over the lower rows until {TARGET} of the start, median (all) of {asked.seeds} seeds")
    for name, make in ((name, OURS[name]) for name in OURS if name in chosen):
        begun = time.perf_counter()
        found = [our_rows(cases(asked, seed), make, seed) for seed in seeds]
        report(name, found, "", time.perf_counter() - begun)
    for name, (peer, options) in ((name, PEERS[name]) for name in PEERS if name in chosen):
        begun, settings = time.perf_counter(), list(grid(asked.case, options))
        pairs = [peer_rows(cases(asked, seed), peer, settings, seed) for seed in seeds]
        report(
            name, [rows for rows, _ in pairs], f"best of {len(settings)}: {pairs[0][1]}", time.perf_counter() - begun
        )


def report(name: str, found: list[float], how: str, seconds: float) -> None:
    listed = ", ".join("-" if np.isinf(value) else f"{value:.1f}" for value in found)
    print(f"{name:32} {np.median(found):8.1f}   ({listed})   {how}   {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
