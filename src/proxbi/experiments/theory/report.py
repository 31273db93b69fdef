"""The result as a page: sentences, tables and pictures."""

import math
from typing import TYPE_CHECKING, Any

from proxbi.experiments.theory import charts
from proxbi.report.markup import Svg
from proxbi.report.page import Block, Picture, Rows, Text

if TYPE_CHECKING:
    from proxbi.experiments.theory import TheoryResult

Row = dict[str, Any]

SHORT = {
    "Proposition 1": "Prop. 1",
    "Corollary 1, distance": "Cor. 1, dist",
    "Corollary 1, gradient mapping": "Cor. 1, G",
    "Theorem 1, sum of decreases": "Thm. 1, sum",
    "(eq: 3)": "(eq: 3)",
    "(eq: 4)": "(eq: 4)",
    "(eq: 3), lower loop": "lower loop",
    "Lemma 1, smoothness": "L_Phi",
    "Lemma 1, hypergradient": "hypergradient",
    "y* Lipschitz": "y*",
}
"""The inequalities as columns, those first that the others are there for."""

BOUNDS = (
    "Each number is the largest left side / right side of an inequality along a run: below 1 it holds. A blank "
    "means that rounding hides every step (the step sizes there are tiny), or that the check does not apply (the "
    "gradient mapping asks for convex h). An inequality counts as violated when its left side exceeds the right by "
    "more than 1e-10 (1 + |size|).",
    "'paper' are the constants as printed (Lemma 1, Proposition 1), 'sharper' the same proof with the blocks of f "
    "and g kept apart and the potential Φ + h + 7/8 s |yᵀ − y*|², s = C/ell, which allows β = 1 / (2 (L_Φ "
    "+ 2 C ell)). The potential's second argument is the warm start: H(x_k, y_k) is made with y_{k+1}.",
)
DEVIATIONS = (
    "inf(Φ + g) in Corollary 1 and the proofs is read as inf(Φ + h). τ M² / μ in Lemma 1's L_Φ is kept as "
    "printed under the paper's name; units ask for τ M / μ, which the sharper form has.",
    "Γ is called O(κ³); with ρ > 0 the formula is O(κ⁵), and L_Φ + Γ + κ² adds numbers of "
    "different units. At κ = 1000 the β that follows is 2e-18 on problem D and 7e-35 on problem E: x does not "
    "move in double precision. The sharper form allows steps 10⁷ to 10²² times as long there, and holds as well.",
    "Nesterov's bound is usually stated for u_T, and Algorithm 1 returns the extrapolated yᵀ: the bound holds for "
    "that too (a two-line argument stands in proxbi/theory/constants.py), but not by this argument for the "
    "appendix' first step.",
    "Corollary 1 needs convex h for the gradient mapping. The distance to criticality obeys the same bound for any h.",
)
SUPERLINEAR = (
    "Theorem 2's superlinear rate (its formula has lost an exp) asks for a KL exponent of H above 1/2. H is "
    "quadratic in the lower error, so its exponent is at most 1/2, unless that error is zero: superlinear "
    "convergence appears with an exact lower solve only (κ = 1, where one step is exact, or y* plugged in). "
    "With T steps at κ = 10 the x of the sharp problem is identified in as few steps, but H falls linearly. The "
    "order seen is 2, and 3/2 is what is guaranteed.",
)
COMPLEXITY = (
    "Work to |G(x)| ≤ ε with the T and β of the sharper form, on a quadratic problem with L_Φ = κ². The "
    "measured exponents are one below the paper's 4 and 3.5, as they should be: those are worst cases over all "
    "problems with given constants, reached only if L_Φ really is of order κ³ (g_yy must vary) and the "
    "direction that converges last is κ³ times flatter. On a quadratic L_Φ, and with it 1/β and the number "
    "of outer steps, is of order κ²: κ³ and κ²·⁵ lower steps in all.",
    "With the paper's own T and β (β of order κ⁻³ already for a quadratic) the same problem takes flow "
    "time / β steps: the dashed lines, whose exponents approach 4 and 3.5. At the two smallest κ that was "
    "run and agrees. The factor ln(8 (1 + κ)) in the accelerated T raises fitted exponents over two decades; "
    "the column without ln has it taken out. All calls count every oracle (CG's products too, which the paper's "
    "count leaves out).",
)

CONTROLS = (
    "Each breaks one condition of the theory; its check must fail, and that of its sound twin must not. inf: H rose.",
)


def drawn(result: "TheoryResult") -> dict[str, list[Svg]]:
    """The charts by name."""
    return {
        "potential": charts.potential(result.potentials),
        "rates": charts.rates(result.dial_series, result.beyond_series),
        "complexity": charts.complexity(result.complexity, result.paper_runs),
    }


def report_blocks(result: "TheoryResult") -> list[Block]:
    """Everything that `proxbi verify theory` shows, for `proxbi.report.write_page`."""
    shown = drawn(result)
    return [
        Text("What the paper claims, and what was found", [_sentence(row) for row in result.verdicts]),
        Text("Bounds", BOUNDS),
        Picture(
            "The potential on problem A, and how much of its decrease Proposition 1 requires (a violation would be "
            "above the dotted line). Solid: the sharper constants; dashed: the paper's.",
            shown["potential"],
        ),
        Rows("Every inequality on every problem: largest left / right", bounds_table(result.inequalities), digits=2),
        Text("Where this departs from the printed text", DEVIATIONS),
        Rows("Theorem 1 at the end of long runs (sharper constants)", result.limits, digits=2),
        Text("Rates under the KL geometry", SUPERLINEAR),
        Picture("Theorem 2: sublinear, linear, and superlinear convergence. Dotted: the fitted rates.", shown["rates"]),
        Rows("Slopes on problem B, where θ = 1/q", result.dial),
        Rows("Beyond θ = 1/2, on problem C", [_blank(row) for row in result.beyond]),
        Text("Complexity", COMPLEXITY),
        Picture(
            "Lower steps to |G| ≤ ε. Dashed: what the paper's T and β would take, flow time / β. Dotted: the "
            "order of the theory, through the last point.",
            shown["complexity"],
        ),
        Rows("Fitted exponents of κ", result.exponents, digits=3),
        Rows("Counts", result.complexity),
        Rows("The paper's T and β, run, beside flow time / β", result.paper_runs, digits=5),
        Text("Negative controls", CONTROLS),
        Rows("Controls", result.controls),
    ]


def bounds_table(rows: list[Row]) -> list[Row]:
    """One row for each problem, kappa and form, with the ratio of each inequality in a column of its own."""
    table: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["problem"], row["kappa"], row["form"])
        head = {"problem": row["problem"], "kappa": f"{row['kappa']:g}", "form": row["form"], "all hold": True}
        line = table.setdefault(key, head | {"T": row["T"], "beta": row["beta"]} | dict.fromkeys(SHORT.values()))
        line["all hold"] = line["all hold"] and row["holds"]
        if row["name"] in SHORT:
            line[SHORT[row["name"]]] = None if math.isnan(row["ratio"]) else row["ratio"]
    return list(table.values())


def _sentence(verdict: Row) -> str:
    return f"{verdict['claim']}: {'holds' if verdict['holds'] else 'DOES NOT HOLD'}; {verdict['evidence']}."


def _blank(row: Row) -> Row:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
