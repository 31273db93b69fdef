"""The report of a fit: one small HTML page."""

from pathlib import Path
from typing import Any

import numpy as np

from proxbi.linear_model.choice import Choice
from proxbi.report import Rows, Text, write_page

MOST_ROWS = 200  # of the table of coefficients, the largest first


def write_report(
    path: Path, title: str, choice: Choice, cv_loss: float, loss_factor: float, loss_name: str, table: dict[str, Any]
) -> None:
    """Write it: the choice and its reason, the candidates with their gains, and the coefficients."""
    lead = f"{choice.reason} Cross-validated {loss_name}: {cv_loss:.4g}."
    blocks: list[Any] = [
        Text(
            "",
            [
                "The cross-validated loss is the smallest of many, so it is slightly optimistic. The figures of the "
                "candidates below were measured on rows that were not used to choose penalties.",
            ],
        )
    ]
    if choice.verdicts:
        caption = f"Mean {loss_name} on rows that were not used; gains are relative to one penalty for all features"
        rows = [
            {
                "candidate": verdict.candidate.words(),
                "loss": loss_factor * verdict.loss,
                "gain": loss_factor * verdict.gain,
                "standard error": loss_factor * verdict.error,
                "chosen": verdict.candidate == choice.candidate,
            }
            for verdict in choice.verdicts
        ]
        blocks.append(Rows(caption, rows))
    blocks.append(_coefficients(table))
    write_page(path, title, lead, blocks)


def _coefficients(table: dict[str, Any]) -> Rows:
    sizes = np.max([np.abs(column) for name, column in table.items() if name.startswith("coef")], axis=0)
    order = np.argsort(-sizes, kind="stable")
    shown = order[:MOST_ROWS]
    zeros = int(np.sum(sizes == 0))
    left_out = f"; the {MOST_ROWS} largest of {len(order)}" if len(order) > MOST_ROWS else ""
    rows = [{name: _plain(column[place]) for name, column in table.items()} for place in shown]
    return Rows(f"Coefficients and penalties ({zeros} coefficients are zero{left_out})", rows)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
