"""The report of `verify`: findings about the assumptions, measured constants, checked inequalities, and a verdict."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from proxbi.theory.checks import Check
from proxbi.theory.constants import Schedule


class Finding(NamedTuple):
    """The finding about one assumption.

    Example: `verify`.
    """

    assumption: str
    """Its number in the paper, and its text."""
    holds: bool
    """False if a violation was found."""
    sentence: str
    """What was found."""


@dataclass(frozen=True)
class Report:
    """The result of `verify`. `str(report)` is a table with sentences.

    Example: `verify`.
    """

    findings: list[Finding]
    """One for each assumption."""
    measured: dict[str, float]
    """Estimates, by name; those of Lipschitz constants are lower bounds, that of mu is an upper bound."""
    schedule: Schedule | None
    """The constants used for the run and its checks; None if no run was possible."""
    estimated: bool
    """Whether they were estimated; otherwise they were given."""
    checks: list[Check]
    """One for each inequality."""

    @property
    def violated(self) -> list[str]:
        """The assumptions for which a violation was found."""
        return [finding.assumption for finding in self.findings if not finding.holds]

    @property
    def margin(self) -> float:
        """1 - (decrease required by Proposition 1) / (decrease of H), in the worst step: negative if it was violated.
        NaN if there was no run, or if no step changed H by more than rounding."""
        return next((1 - check.ratio for check in self.checks if check.name == "Proposition 1"), float("nan"))

    @property
    def ok(self) -> bool:
        """Whether no violation was found and every inequality held."""
        return not self.violated and bool(self.checks) and all(check.holds for check in self.checks)

    def __str__(self) -> str:
        lines = ["assumptions"]
        lines += [f"  {'ok ' if f.holds else 'NO '} {f.assumption:<32} {f.sentence}" for f in self.findings]
        lines += ["measured (estimates: mu from above, the others from below)"] if self.measured else []
        lines += [f"      {name:<32} {value:.4g}" for name, value in self.measured.items()]
        if self.schedule is not None:
            s, kind = self.schedule, "estimated" if self.estimated else "given"
            steps = f"alpha = {s.alpha:.3g}, eta = {s.eta:.3g}, T = {s.T}, beta = {s.beta:.3g}"
            lines += [
                f"step sizes from {kind} constants: {steps}",
                "inequalities along the run (left / right, at most 1)",
            ]
        for check in self.checks:
            ratio = f"{check.ratio:.2g}" if check.resolved else "-"
            note = "" if check.resolved else "  (every step is below rounding)"
            lines.append(f"  {'ok ' if check.holds else 'NO '} {check.name:<32} {ratio}{note}")
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """The verdict, in one sentence."""
        if self.violated:
            return f"The theory does not cover this problem as it stands: see {'; '.join(self.violated)}."
        failed = [check.name for check in self.checks if not check.holds]
        if failed:
            blame = "the estimated constants are too optimistic" if self.estimated else "the constants given are wrong"
            return (
                f"No violated assumption was found, but {', '.join(failed)} failed: {blame}, or a violation was missed."
            )
        if np.isnan(self.margin):
            return "Nothing contradicts the theory, but the steps it allows are below rounding in this precision."
        return (
            f"Nothing contradicts the theory; Proposition 1 holds with a margin of {self.margin:.0%} in its worst step."
        )
