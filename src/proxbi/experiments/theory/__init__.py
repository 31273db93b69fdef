"""The paper's theorems, run: every bound on every analytic problem, the rates, the complexity, and controls that fail.

result = run(quick=True)
result.holds, result.verdicts
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from proxbi.experiments.theory import bounds, complexity, controls, rates
from proxbi.experiments.theory.problems import KAPPAS, KINDS
from proxbi.experiments.theory.report import report_blocks as report_blocks
from proxbi.experiments.theory.verdicts import verdicts

Row = dict[str, Any]
QUICK_COMPLEXITY = (2.0, 6.0, 20.0, 60.0, 200.0)
COMPLEXITY = (6.0, 15.0, 40.0, 100.0, 250.0, 600.0)


@dataclass(frozen=True)
class TheoryResult:
    """Rows of every check, each list a table of its own, and what they amount to."""

    inequalities: list[Row]
    """One for each problem, kappa, form and inequality."""
    potentials: list[Row]
    """H_k along runs on problem A."""
    limits: list[Row]
    """Theorem 1 at the end of long runs."""
    dial: list[Row]
    """Theorem 2 for theta <= 1/2: slopes."""
    dial_series: list[Row]
    beyond: list[Row]
    """Theorem 2 for theta > 1/2."""
    beyond_series: list[Row]
    complexity: list[Row]
    exponents: list[Row]
    paper_runs: list[Row]
    """The paper's own T and beta, run at small kappa."""
    controls: list[Row]
    verdicts: list[Row]
    """The claims, whether they hold, and the numbers behind it."""

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(row["holds"] for row in self.verdicts)

    def tables(self) -> dict[str, list[Row]]:
        """All rows by name: one CSV file each."""
        return dict(vars(self))


def run(
    kappas: Sequence[float] = KAPPAS,
    *,
    quick: bool = False,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TheoryResult:
    """Check everything, in double precision whatever JAX's setting is.

    **Arguments:**

    - `kappas`: the condition numbers at which every bound is checked.
    - `quick`: shorter runs for Theorem 1 and a smaller largest kappa for the complexity.
    - `seed`: of the analytic problems.
    - `progress`: called with how many of how many parts are done.
    """
    if not kappas or min(kappas) < 1:
        raise ValueError(f"kappas must be one or more numbers >= 1, got {list(kappas)}.")
    work = QUICK_COMPLEXITY if quick else COMPLEXITY
    total, done = len(KINDS) * len(kappas) + 2 * len(work) + 5, 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    def ticked(rows: Any) -> Any:
        tick()
        return rows

    with jax.enable_x64(True):
        inequalities = bounds.inequalities(kappas, seed, tick)
        potentials = ticked(bounds.potentials(kappas, seed, 1000 if quick else 5000))
        limits = ticked(bounds.limits((2.0,) if quick else (2.0, 10.0), seed, 20_000 if quick else 200_000))
        dial, dial_series = ticked(rates.dial(10.0, 20_000, seed))
        beyond, beyond_series = ticked(rates.beyond(seed))
        failures = ticked(controls.controls(seed))
        counted = complexity.complexity(work, tick)
        paper_runs = complexity.paper_runs(counted, work[:2])
    exponents = complexity.exponents(counted)
    tables: dict[str, list[Row]] = {
        "inequalities": inequalities,
        "potentials": potentials,
        "limits": limits,
        "dial": dial,
        "dial_series": dial_series,
        "beyond": beyond,
        "beyond_series": beyond_series,
        "complexity": counted,
        "exponents": exponents,
        "paper_runs": paper_runs,
        "controls": failures,
    }
    return TheoryResult(**tables, verdicts=verdicts(tables))
