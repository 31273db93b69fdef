"""The report of a cleaning: one self-contained HTML page for a person who has to decide what to do with the labels."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from proxbi.cleaning.method.weightings import MEANINGS
from proxbi.cleaning.report import figures, findings
from proxbi.cleaning.report.markup import number, percent
from proxbi.cleaning.report.review import COLUMNS, Rows, borderline, suspects, table
from proxbi.cleaning.result import Cleaned
from proxbi.report.page import render

if TYPE_CHECKING:
    import pandas as pd

SUSPECTS, BORDERLINE = 500, 40  # rows shown at most
LARGEST_PAGE = 2_000_000  # bytes


def write_report(
    path: str | PathLike[str],
    cleaned: Cleaned,
    *,
    labels: Sequence[str],
    given: Int[np.ndarray, " rows"],
    ids: Sequence[Any] | None = None,
    id_name: str = "id",
    groups: Sequence[str] | None = None,
    group_of: Int[np.ndarray, " rows"] | None = None,
    images: np.ndarray | None = None,
    frame: "pd.DataFrame | None" = None,
    title: str = "Label cleaning",
    command: str | None = None,
    seed: int = 0,
    versions: dict[str, str] | None = None,
) -> None:
    """Write the report of `cleaned` to `path`: one HTML file of at most 2 MB that asks nothing of the network.

    - `labels`: the names of the classes; `given`: the class index of each row's label as it came.
    - `ids`: what to call the rows (their number, from 0, unless given); `id_name`: what these are.
    - `groups` and `group_of`: names, and each row's index into them.
    - `images`: [n, height, width] or [n, height, width, 3], shown beside the suspects.
    - `frame`: columns to show beside the suspects (the first 8).
    - `title`: the head of the page; `command`, `seed`, `versions`: for its end.

    At most 500 suspects and 40 borderline rows are shown; fewer suspects if the page would grow beyond 2 MB.
    The same arguments give the same bytes.

    >>> from tempfile import TemporaryDirectory
    >>> from proxbi.cleaning.result import Interval
    >>> quality = np.array([0.9, 0.8, 0.1])
    >>> cleaned = Cleaned(
    ...     weight=quality, quality=quality, issue=quality < 0.5, suggested=np.array([0, 1, 1]), trusted=quality > 1,
    ...     noise_rate=Interval(0.33, 0.1, 0.7), noise_by_class=[], noise_by_group=[], scores=[], chosen="bilevel",
    ...     helped=False, history=[], removal=[], warnings=[], settings={},
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     page = Path(folder, "report.html")
    ...     write_report(page, cleaned, labels=["cat", "dog"], given=np.array([0, 1, 0]))
    ...     "Flagged rows: 1, all shown." in page.read_text(encoding="utf-8")
    True
    """
    names = [str(label) for label in labels]
    rows = Rows(cleaned, names, given, None if ids is None else list(ids), groups, group_of, images, frame, id_name)
    head = {"title": title, "facts": _facts(cleaned), "run": _run(seed, versions or {}, command)}
    body = head | _judged(cleaned) | _drawn(rows)
    most = SUSPECTS
    while len(page := _page(rows, body, most)) > LARGEST_PAGE and most > 1:
        most //= 2
    Path(path).write_bytes(page)


def _page(rows: Rows, body: dict[str, Any], most: int) -> bytes:
    cleaned = rows.cleaned
    review = {
        "suspects_note": _suspects_note(rows, most),
        "suspects": table(rows, "suspects", suspects(cleaned, most), flag=False),
        "borderline": table(rows, "borderline", borderline(cleaned, min(most, BORDERLINE)), flag=True),
    }
    return render("cleaning.html", "cleaning/report", **body, **review).encode()


def _suspects_note(rows: Rows, most: int) -> str:
    flagged = int(np.sum(rows.cleaned.issue))
    if not flagged:
        return "No row is flagged."
    note = f"Flagged rows: {flagged:,}, " + (f"the worst {most:,} shown." if most < flagged else "all shown.")
    columns = 0 if rows.frame is None else rows.frame.shape[1]
    return f"{note} The first {COLUMNS} of {columns} columns are shown." if columns > COLUMNS else note


def _facts(cleaned: Cleaned) -> list[tuple[str, str]]:
    """The numbers that a reader looks for first."""
    untrusted, flagged = int(np.sum(~cleaned.trusted)), int(np.sum(cleaned.issue))
    facts = [
        ("rows", f"{len(cleaned.trusted):,}, of which {np.sum(cleaned.trusted):,} trusted"),
        ("probably wrong", f"{flagged:,} ({percent(flagged / max(1, untrusted))} of those not trusted)"),
        ("share of wrong labels, estimated", findings.share_wrong(cleaned.noise_rate)),
    ]
    if (measured := findings.accuracies(cleaned)) is not None:
        facts += [("held-out accuracy, labels as given", measured[0]), ("held-out accuracy, as cleaned", measured[1])]
    return facts


def _run(seed: int, versions: dict[str, str], command: str | None) -> list[tuple[str, str]]:
    """How to get the same page again."""
    run = [
        ("command", command or ""),
        ("seed", str(seed)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    return [(name, value) for name, value in run if value]


def _judged(cleaned: Cleaned) -> dict[str, Any]:
    """What is said in words and numbers."""
    settings = cleaned.settings.items()
    return {
        "headline": findings.headline(cleaned),
        "for_a_model": findings.for_a_model(cleaned),
        "judge": findings.judge(cleaned),
        "scores": [row | {"meaning": MEANINGS.get(row["name"], row["name"])} for row in cleaned.scores],
        "chosen": cleaned.chosen,
        "percent": percent,
        "gap": figures.gap(cleaned.history),
        "settings": [(name, value if isinstance(value, str) else number(value)) for name, value in settings],
        "warnings": cleaned.warnings,
    }


def _drawn(rows: Rows) -> dict[str, Any]:
    cleaned = rows.cleaned
    return {
        "score_charts": figures.scores(cleaned),
        "histograms": figures.histograms(cleaned),
        **figures.confusion(cleaned, rows.given, rows.labels),
        "by_class": figures.rates(cleaned.noise_by_class, "class", rows.labels),
        "by_group": None
        if rows.groups is None
        else figures.rates(findings.groups_judged(cleaned), "group", rows.groups),
        "convergence": figures.convergence(cleaned.history),
        "removal": figures.removal(cleaned.removal, int(np.sum(cleaned.issue))),
    }
