"""What the rows amount to: each claim, whether it holds, and the numbers behind it."""

import math
from typing import Any

Row = dict[str, Any]


def verdicts(tables: dict[str, list[Row]]) -> list[Row]:
    """One row for each claim of the paper, and one for the controls."""
    return [
        _inequalities(tables["inequalities"]),
        _limits(tables["limits"]),
        _slopes(tables["dial"]),
        _beyond(tables["beyond"]),
        _complexity(tables["exponents"]),
        _paper(tables["paper_runs"]),
        _controls(tables["controls"]),
    ]


def _row(claim: str, holds: bool, evidence: str) -> Row:
    return {"claim": claim, "holds": holds, "evidence": evidence}


def _inequalities(rows: list[Row]) -> Row:
    proposition = [r["ratio"] for r in rows if r["name"] == "Proposition 1" and not math.isnan(r["ratio"])]
    broken = sum(not r["holds"] for r in rows)
    evidence = (
        f"{len(rows) - broken} of {len(rows)} inequalities hold; Proposition 1 asks for at most "
        f"{max(proposition, default=math.nan):.2f} of the decrease that happens"
    )
    return _row("Lemma 1, Proposition 1, Theorem 1 (sums) and Corollary 1", broken == 0, evidence)


def _limits(rows: list[Row]) -> Row:
    distance = max(r["4: distance / first"] for r in rows)
    return _row(
        "Theorem 1, limits",
        all(r["holds"] for r in rows),
        f"distances to criticality fell to {distance:.0e} of the first",
    )


def _slopes(rows: list[Row]) -> Row:
    worst = max(abs(r["deviation"]) for r in rows)
    return _row(
        "Theorem 2, theta = 1/6 to 1/2", all(r["holds"] for r in rows), f"fitted slopes within {worst:.1%} of theory"
    )


def _beyond(rows: list[Row]) -> Row:
    inexact = next(r for r in rows if not r["exact"] and not math.isnan(r["linear rate"]))
    exact = max(r["order"] for r in rows if r["exact"] and not math.isnan(r["order"]))
    evidence = f"order {exact:.2f} with an exact lower solve; without, H falls by {inexact['linear rate']:.1e} a step"
    claim = "Theorem 2, theta > 1/2: superlinear if and only if the lower solve is exact"
    return _row(claim, all(r["holds"] for r in rows), evidence)


def _complexity(rows: list[Row]) -> Row:
    found = {(r["quantity"], r["lower loop"]): r for r in rows}
    plain, fast = found["lower steps", "plain"], found["lower steps", "accelerated"]
    ratio = found["lower steps", "accelerated / plain"]
    close = abs(ratio["without ln"] + 0.5) < 0.1 and plain["exponent"] <= 4.05 and fast["without ln"] <= 3.55
    evidence = (
        f"kappa^{plain['exponent']:.2f} plain, kappa^{fast['without ln']:.2f} ln kappa accelerated, "
        f"ratio kappa^{ratio['without ln']:.2f} ln kappa"
    )
    return _row("Corollary 1, complexity: at most kappa^4 and kappa^3.5 ln kappa", close, evidence)


def _paper(rows: list[Row]) -> Row:
    worst = max(abs(r["deviation"]) for r in rows)
    return _row(
        "Steps = flow time / beta, with the paper's T and beta", worst < 0.05, f"within {worst:.1%} at small kappa"
    )


def _controls(rows: list[Row]) -> Row:
    broken, kept = ([r for r in rows if r["must fail"] is must] for must in (True, False))
    failed, wrongly = (sum(r["fails"] for r in some) for some in (broken, kept))
    evidence = f"{failed} of {len(broken)} fail, and {wrongly} of their {len(kept)} sound twins"
    return _row("Negative controls fail", all(r["as it must"] for r in rows), evidence)
