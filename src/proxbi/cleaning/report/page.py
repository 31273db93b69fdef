"""The report of a cleaning: one self-contained HTML page for the person who decides what to do with the labels."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.inputs.features import Use
from proxbi.cleaning.method.weightings import MEANINGS, PLAIN
from proxbi.cleaning.report import figures, findings
from proxbi.cleaning.report.evidence import contradicting_copies
from proxbi.cleaning.report.review import COLUMNS, LETTERS, suspects, table, teaching
from proxbi.cleaning.report.rows import Rows
from proxbi.cleaning.result import Cleaned, Score
from proxbi.report.markup import number, percent, script_data, short
from proxbi.report.page import render

if TYPE_CHECKING:
    import pandas as pd

SUSPECTS, TEACHING = 500, 100  # rows shown at most
LARGEST_PAGE = 4_000_000  # bytes


class Step(NamedTuple):
    """A next step, and the command or code for it."""

    text: str
    command: str = ""
    one_label: bool = False
    """Whether it is possible only where each row has one label, and not several votes."""


class Run(NamedTuple):
    """How the page was made, for its footer."""

    command: str = ""
    seed: int = 0
    versions: Mapping[str, str] = MappingProxyType({})
    file: str = ""
    digest: str = ""
    """The SHA-256 of the cleaned data; decisions contain it."""
    made: str = ""
    """The date and time."""


class Tile(NamedTuple):
    """A large number with its name and a note."""

    number: str
    name: str
    note: str


def write_report(
    path: str | PathLike[str],
    cleaned: Cleaned,
    *,
    labels: Sequence[str],
    given: Int[np.ndarray, " rows"],
    before: Int[np.ndarray, " rows"] | None = None,
    ids: Sequence[Any] | None = None,
    id_name: str = "id",
    groups: Sequence[str] | None = None,
    group_of: Int[np.ndarray, " rows"] | None = None,
    images: np.ndarray | None = None,
    frame: "pd.DataFrame | None" = None,
    features: Float[np.ndarray, "rows columns"] | None = None,
    votes: Int[np.ndarray, "rows annotators"] | None = None,
    annotators: Sequence[str] = (),
    uses: Sequence[Use] = (),
    places: Int[np.ndarray, " rows"] | None = None,
    earlier: Sequence[dict[str, Any]] | None = None,
    steps: Sequence[Step] = (),
    title: str = "Label cleaning",
    run: Run | None = None,
    show_rows: bool = True,
) -> None:
    """Write the report of `cleaned` to `path`: one HTML file of at most 4 MB that needs no network.

    - `labels`: the names of the classes; `given`: the class index of each row's label; `before`: the earlier labels of
    rows that a person decided, -1 for all others.
    - `ids`: names of the rows (by default their number, from 0); `id_name`: the name of this column.
    - `groups` and `group_of`: names, and each row's index into them.
    - `images`: [n, height, width] or [n, height, width, 3], shown beside the suspects.
    - `frame`: columns to show beside the suspects (the first 8), and to say which values speak against a label.
    - `features`: rows as numbers, to say which are alike; `uses`: what became of each column.
    - `votes`: where rows have several, the class of each vote, -1 where there is none; `annotators`: the names of those
      who voted.
    - `places`: where these are some of the rows of a table: the number of each there, which decisions carry.
      `earlier`: what was decided of all rows of that table (row, id, decision, label), if `before` has less.
    - `steps`: what to do now. `title`: the head of the page; `run`: for its foot.
    - `show_rows`: False leaves out all that is about single rows, for pages that are shared outside.

    At most 500 suspects and 100 of the rows that would teach most are shown, or fewer if the page would exceed 4 MB.
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
    ...     "1 of 3 labels is probably wrong" in page.read_text(encoding="utf-8")
    True
    """
    names = [str(label) for label in labels]
    called = None if ids is None else list(ids)
    rows = Rows(
        cleaned,
        names,
        given,
        called,
        groups,
        group_of,
        images,
        frame,
        id_name,
        features,
        before,
        places,
        earlier,
        votes,
        annotators if votes is not None else (),
    )
    body = {
        "title": title,
        "steps": _possible(steps, cleaned),
        "show_rows": show_rows,
        **_columns(uses),
        **_foot(run or Run()),
    }
    body |= _judged(cleaned) | _drawn(rows) | {"by_annotator": figures.annotators(cleaned, annotators)}
    most = SUSPECTS
    while len(page := _page(rows, body, run or Run(), most if show_rows else 0)) > LARGEST_PAGE and most > 1:
        most //= 2
    Path(path).write_bytes(page)


def _possible(steps: Sequence[Step], cleaned: Cleaned) -> list[Step]:
    return [step for step in steps if cleaned.consensus is None or not step.one_label]


def _page(rows: Rows, body: dict[str, Any], run: Run, most: int) -> bytes:
    cleaned = rows.cleaned
    copies = contradicting_copies(rows, np.random.default_rng(0)) if most else []
    review = {
        "suspects_note": _suspects_note(rows, most),
        "suspects": table(rows, "suspects", suspects(cleaned, most)),
        "teaching": table(rows, "teaching", teaching(cleaned, min(most, TEACHING))),
        "copies": [_copy(rows, *each) for each in copies],
        "workbench": script_data(_workbench(rows, run) if most else {}),
        "in_gallery": rows.images is not None,
    }
    return render("cleaning.html", "cleaning/report", **body, **review).encode()


def _workbench(rows: Rows, run: Run) -> dict[str, Any]:
    """Data for the script that is not in the tables: the classes, and earlier decisions."""
    decided = [] if rows.before is None else np.flatnonzero(rows.before >= 0).tolist()
    earlier = [_earlier(rows, row) for row in decided] if rows.earlier is None else list(rows.earlier)
    return {"digest": run.digest, "labels": list(rows.labels), "decided": earlier}


def _earlier(rows: Rows, row: int) -> dict[str, Any]:
    """A decision that was made before this page."""
    assert rows.before is not None
    kept = rows.before[row] == rows.given[row]
    label = rows.labels[rows.given[row]]
    return {"row": rows.place(row), "id": rows.called(row), "decision": "keep" if kept else "other", "label": label}


def _copy(rows: Rows, first: int, second: int, exact: bool) -> dict[str, Any]:
    cut = [(short(rows.called(row), LETTERS), short(rows.labels[rows.given[row]], LETTERS)) for row in (first, second)]
    both = [{"called": called, "label": label} for called, label in cut]
    return {"both": both, "how": "the same" if exact else "nearly the same"}


def _suspects_note(rows: Rows, most: int) -> str:
    flagged, here = rows.cleaned.counts.flagged, int(np.sum(rows.cleaned.issue))
    if not flagged:
        return "No row is flagged."
    if rows.cleaned.whole is not None:
        note = (
            f"Flagged rows: {flagged:,}. Of the {len(rows.given):,} rows that were learned from, the worst "
            f"{min(most, here):,} are shown. The files of cleaned rows contain all of them."
        )
    elif most >= flagged:
        note = f"Flagged rows: {flagged:,}, all shown."
    else:
        note = f"Flagged rows: {flagged:,}, the worst {most:,} shown; the file of suspects contains all of them."
    columns = 0 if rows.frame is None else rows.frame.shape[1]
    return f"{note} The first {COLUMNS} of {columns} columns are shown." if columns > COLUMNS else note


def _tiles(cleaned: Cleaned) -> list[Tile]:
    """The three numbers that a reader looks for first."""
    (judged, trusted, decided, flagged), rate = cleaned.counts, cleaned.noise_rate
    others = {0: "none is trusted", 1: "1 more is trusted"}.get(trusted, f"{trusted:,} more are trusted")
    who = others + (f", {decided:,} of them decided by hand" if decided else "")
    known = findings.is_known(rate)
    share = (
        f"95 % interval: {findings.whole(rate.low)} to {findings.whole(rate.high)} %"
        if known
        else "too little to go by"
    )
    tiles = [
        Tile(f"{flagged:,}", "suspects" if flagged != 1 else "suspect", f"of {judged:,} labels; {who}"),
        Tile(
            f"{findings.whole(rate.estimate)} %" if known else findings.NOT_KNOWN,
            "of the labels are wrong, by estimate",
            share,
        ),
    ]
    if (measured := findings.before_and_after(cleaned)) is not None:
        old, new = (f"{100 * each.estimate:.1f}" for each in measured)
        ends = " → ".join(f"{100 * each.low:.0f}-{100 * each.high:.0f}" for each in measured)
        tiles.append(
            Tile(
                f"{old} → {new} %",
                "accuracy of a model, before and after",
                f"95 % intervals: {ends} %; on {findings.judge(cleaned)}",
            )
        )
    else:
        tiles.append(Tile(findings.NOT_KNOWN, "accuracy of a model, before and after", "it was not measured"))
    return tiles


def _columns(uses: Sequence[Use]) -> dict[str, Any]:
    return {"used": [use for use in uses if use.kind], "unused": [use for use in uses if not use.kind]}


def _foot(run: Run) -> dict[str, Any]:
    """How to make the same page again."""
    facts = [
        ("made", run.made),
        ("data", run.file),
        ("SHA-256 of the data", run.digest),
        ("command", run.command),
        ("seed", str(run.seed)),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
    ]
    return {"foot": [(name, value) for name, value in facts if value]}


def _judged(cleaned: Cleaned) -> dict[str, Any]:
    """The findings in words and numbers."""
    settings = cleaned.settings.items()
    return {
        "tiles": _tiles(cleaned),
        "headline": findings.headline(cleaned),
        "for_a_model": findings.for_a_model(cleaned),
        "judge": findings.judge(cleaned),
        "scores": [_score(each) for each in cleaned.scores],
        "chosen": cleaned.chosen,
        "gap": figures.gap(cleaned.history),
        "settings": [(name, value if isinstance(value, str) else number(value)) for name, value in settings],
        "warnings": cleaned.warnings,
    }


def _score(score: Score) -> dict[str, str]:
    name, reach = score.name, findings.NORMAL * score.loss_se
    return {
        "name": name,
        "plain": PLAIN.get(name, name),
        "meaning": MEANINGS.get(name, ""),
        "accuracy": findings.with_interval(findings.scored(score)),
        "loss": f"{score.loss:.3f} ({max(0.0, score.loss - reach):.3f}-{score.loss + reach:.3f})",
    }


def _drawn(rows: Rows) -> dict[str, Any]:
    cleaned = rows.cleaned
    groups = None if rows.groups is None else figures.rates(findings.groups_judged(cleaned), rows.groups)
    return {
        "histograms": figures.histograms(cleaned),
        **figures.confusion(cleaned, rows.given, rows.labels),
        "by_class": figures.rates(cleaned.noise_by_class, rows.labels),
        "by_group": groups,
        "convergence": figures.convergence(cleaned.history),
        "removal": figures.removal(cleaned.removal, cleaned.counts.flagged),
        "percent": percent,
        "sample_note": _sample_note(rows),
    }


def _sample_note(rows: Rows) -> str:
    """A note for tables larger than the sample that is drawn."""
    if rows.cleaned.whole is None:
        return ""
    return f"Only the {len(rows.given):,} rows that were learned from; shares with intervals are of all rows."
