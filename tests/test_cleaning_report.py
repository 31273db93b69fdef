"""The report of a cleaning: it says what the result says, everything given to it stays text, and it stays small."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import cleaned_example
from cleaned_example import DIGITS, everything, evil, report
from proxbi.cleaning.method.weightings import PLAIN
from proxbi.cleaning.report import figures
from proxbi.cleaning.report.page import LARGEST_PAGE, SUSPECTS, write_report
from proxbi.cleaning.report.publish import _images
from proxbi.cleaning.report.review import LETTERS, suspects, teaching
from proxbi.cleaning.result import Interval, NoiseShare, OuterStep

UNKNOWN = Interval(float("nan"), float("nan"), float("nan"))
HEADINGS = [
    "What to do now",
    "Be careful",
    "Contents",
    "Review",
    "Suspects",
    "What teaches most",
    "Given and suggested labels",
    "Wrong labels by class",
    "Wrong labels by group",
    "Columns",
    "For experts",
    "How this page was made",
]


def sparse(folder: Path, example: cleaned_example.Example, classes: int, **more: Any) -> str:
    """The page of a result with nothing beside it."""
    path = folder / "report.html"
    labels = [f"class {k}" for k in range(classes)]
    write_report(path, example.cleaned, **({"labels": labels, "given": example.given} | more))
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """The elements of a page, by name: their attributes, and the text of all its tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[dict[str, str | None]]] = {}
        self.tables: list[list[list[str]]] = []
        self.in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.setdefault(tag, []).append(dict(attrs))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.tables[-1][-1][-1] += data.strip()


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(chart) for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


# === What the page says ===============================================================================================


def test_the_sections_are_there_in_order_and_every_chart_is_labelled(tmp_path):
    page = report(tmp_path)
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == HEADINGS
    assert len(charts(page)) == 2 + 2 + 2 + 2
    for chart in charts(page):
        assert any("quiet" in text.get("class", "") and text.text for text in chart.iter("text"))
        assert not re.search(r'"(nan|inf|-inf)"', ElementTree.tostring(chart, "unicode"))


def test_three_numbers_come_first_and_how_it_was_made_last(tmp_path):
    cleaned, page = cleaned_example.digits().cleaned, report(tmp_path)
    rate = cleaned.noise_rate
    tiles = re.findall(
        r'<li><strong>(.*?)</strong> <span class="name">(.*?)</span> <span class="note">(.*?)</span>', page
    )
    assert [number for number, _, _ in tiles] == [
        f"{np.sum(cleaned.issue)}",
        f"{100 * rate.estimate:.0f} %",
        "90.5 → 96.2 %",
    ]
    assert tiles[0][2] == "of 500 labels; 100 more are trusted"
    assert tiles[1][2] == f"95 % interval: {100 * rate.low:.0f} to {100 * rate.high:.0f} %"
    assert tiles[2][2] == "95 % intervals: 87-94 → 92-100 %; on held-out trusted rows"
    foot, settings = page[page.index("<footer") :].split("<summary>Settings</summary>")
    facts, set_to = (dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", part)) for part in (foot, settings))
    assert facts["seed"] == "7"
    assert facts["made"] == "2026-11-16 14:00 UTC"
    assert facts["data"] == "digits.csv (9 bytes)"
    assert facts["SHA-256 of the data"] == "d1" * 32
    assert facts["versions"] == "proxbi 0.1.0, jax 0.8.0"
    assert facts["command"] == "<code>proxbi clean digits.csv --label y</code>"
    assert (set_to["bandwidth"], set_to["kernel"]) == ("0.031", "gaussian")
    parts = ('class="tiles"', 'class="headline"', "for a model", "What to do now", "<nav", "<footer")
    order = [page.index(part) for part in parts]
    assert order == sorted(order)


def test_the_contents_lead_to_every_part(tmp_path):
    elements = Elements(report(tmp_path)).found
    ids = {one["id"] for found in elements.values() for one in found if "id" in one}
    links = [link["href"] for link in elements["a"]]
    assert len(links) >= 9
    assert {link.removeprefix("#") for link in links} <= ids


def test_every_head_of_a_table_says_what_it_heads(tmp_path):
    elements = Elements(report(tmp_path, images=None)).found
    assert all(head.get("scope") in ("col", "row", "colgroup") for head in elements["th"])
    assert all(box.get("aria-label") for box in elements["input"])


def test_without_rows_nothing_is_told_about_single_rows(tmp_path):
    page = report(tmp_path, show_rows=False)
    shown = report(tmp_path)
    for word in (r"\bid-\d", "said &#34;", "data:image/png", 'class="workbench"', 'class="item"'):
        assert not re.search(word, page)
        assert re.search(word, shown)
    assert "Wrong labels by group" in page
    assert json.loads(re.search(r'id="workbench-data">(.*?)</script>', page)[1]) == {}


def test_columns_are_listed_with_what_became_of_them(tmp_path):
    tables = Elements(report(tmp_path)).tables
    assert ["ink", "number", "some are missing"] in [row for table in tables for row in table]
    assert ["digit", "the labels"] in [row for table in tables for row in table]


@pytest.mark.parametrize(
    ("flagged", "rate", "words"),
    [
        (35, Interval(0.17, 0.13, 0.24), "35 of 200 labels are probably wrong (17 %, 13-24 %)."),
        (1, Interval(0.006, 0.0, 0.02), "1 of 200 labels is probably wrong (0.6 %, 0-2.0 %)."),
        (0, Interval(0.0, 0.0, 0.01), "None of 200 labels looks wrong (0 %, 0-1.0 %)."),
        (5, UNKNOWN, "5 of 200 labels are probably wrong (share of wrong labels not known)."),
        (0, UNKNOWN, "It is not known whether any of 200 labels is wrong."),
    ],
)
def test_the_headline_is_what_was_found(tmp_path, flagged, rate, words):
    example = cleaned_example.random(200, 3, flagged)
    example = example._replace(cleaned=replace(example.cleaned, noise_rate=rate))
    page = sparse(tmp_path, example, 3)
    assert f'<p class="headline">{words}</p>' in page
    assert ('<strong>not known</strong> <span class="name">of the labels' in page) == (rate is UNKNOWN)


@pytest.mark.parametrize(
    ("chosen", "helped", "words"),
    [
        (
            "bilevel",
            True,
            "It matters for a model: trained on all labels as given it is right in 90.5 % (86.6-94.4 %) of",
        ),
        (
            "trimming",
            False,
            "For a model the difference is within the errors: trained on all labels as given it is right in",
        ),
        ("noisy", False, "For a model it makes no measurable difference: trained on all labels as given"),
        ("unheard of", True, "Whether this matters for a model was not measured."),
    ],
)
def test_whether_it_matters_for_a_model_comes_second(tmp_path, chosen, helped, words):
    page = report(tmp_path, cleaned=replace(cleaned_example.digits().cleaned, chosen=chosen, helped=helped))
    assert re.search(r'<p class="headline">[^<]*</p>\s*<p>([^<]*)</p>', page)[1].startswith(words)
    assert "did not help" not in page


def test_without_trusted_rows_nothing_claims_to_be_judged_by_them(tmp_path):
    cleaned = replace(cleaned_example.digits().cleaned, trusted=np.zeros(600, bool))
    assert "of held-out rows (by the labels given: no row is trusted)" in report(tmp_path, cleaned=cleaned)


def test_the_scores_are_those_of_the_result_under_plain_names(tmp_path):
    table = next(table for table in Elements(report(tmp_path)).tables if table[0][0] == "trained on")
    assert table[1][0] == "all labels as given"
    for row, score in zip(table[1:], cleaned_example.digits().cleaned.scores, strict=True):
        low, high = (100 * min(1.0, score.accuracy + sign * 1.96 * 0.02) for sign in (-1, 1))
        assert row[0] == PLAIN[score.name]
        assert row[1] == f"{100 * score.accuracy:.1f} % ({low:.1f}-{high:.1f} %)"
        assert row[2].startswith(f"{score.loss:.3f} (")


@pytest.mark.parametrize("pictures", [True, False])
def test_a_label_is_crossed_out_only_where_another_is_suggested(tmp_path, pictures):
    """Rows that teach most often have no other suggestion."""
    given = everything() if pictures else everything(images=None)
    page = report(tmp_path, **given)
    items = re.findall(r'class="item" data-row="(\d+)".*?(?=class="item"|</ul>\n|</tbody>)', page, re.DOTALL)
    bodies = re.split(r'class="item" data-row="\d+"', page)[1:]
    issue = given["cleaned"].issue[[int(row) for row in items]]
    crossed = [
        bool(re.search(r'class="[^"]*\bwas"', body.split("<dl>" if pictures else "</tr>")[0])) for body in bodies
    ]
    assert set(issue) == {True, False}
    assert crossed == issue.tolist()


@pytest.mark.parametrize(("trusted", "words"), [(0, "none is trusted"), (1, "1 more is trusted")])
def test_few_trusted_rows_are_counted_in_words(tmp_path, trusted, words):
    cleaned = replace(cleaned_example.digits().cleaned, trusted=np.arange(600) < trusted)
    assert f"labels; {words}</span>" in report(tmp_path, cleaned=cleaned)


def matrix(page: str) -> list[list[str]]:
    return next(table for table in Elements(page).tables if "suggested label" in table[0])


def test_the_matrix_counts_untrusted_rows(tmp_path):
    example = cleaned_example.digits()
    table = matrix(report(tmp_path))
    assert table[1][1:-1] == DIGITS
    shown = np.array([[int(cell or 0) for cell in row[1:]] for row in table[2:]])
    judged = ~example.cleaned.trusted
    expected = pd.crosstab(example.given[judged], example.cleaned.suggested[judged])
    assert np.array_equal(shown[:-1, :-1], expected)
    assert np.array_equal(shown[:-1, -1], expected.sum(axis=1))
    assert np.array_equal(shown[-1, :-1], expected.sum(axis=0))
    assert shown[-1, -1] == 500


def test_a_hundred_classes_are_listed_by_the_largest_changes(tmp_path):
    example = cleaned_example.random(30_000, 100, 9_000)
    page = sparse(tmp_path, example, 100)
    table = next(table for table in Elements(page).tables if "share of the given label" in table[0])
    rows = [[row[0], row[1], int(row[2])] for row in table[1:]]
    counts = pd.crosstab(example.given, example.cleaned.suggested).to_numpy(copy=True)
    np.fill_diagonal(counts, 0)
    assert [row[2] for row in rows] == sorted(counts.ravel(), reverse=True)[: figures.PAIRS]
    for given, suggested, count in rows:
        assert counts[int(given.split()[1]), int(suggested.split()[1])] == count
    assert "The 30 of 100 with the highest rate are shown." in page


@pytest.mark.parametrize("classes", [2, 3, 20, 21, 100])
def test_any_number_of_classes(tmp_path, classes):
    page = sparse(tmp_path, cleaned_example.random(400, classes, 100), classes)
    tables = [table for table in Elements(page).tables if table[0][0] in ("", "given")]
    assert len(tables[0]) == (classes + 3 if classes <= figures.MATRIX else figures.PAIRS + 1)
    assert all(chart is not None for chart in charts(page))


def test_little_is_known(tmp_path):
    """No scores, no history, no issue, an unknown rate: the page is written, and its empty sections are left out."""
    example = cleaned_example.random(50, 3, 0)
    nan = float("nan")
    unknown = [NoiseShare(0, 0, Interval(nan, nan, nan))]
    cleaned = replace(
        example.cleaned,
        noise_by_class=unknown,
        warnings=[],
        settings={},
        noise_rate=example.cleaned.noise_rate._replace(low=nan),
    )
    page = sparse(tmp_path, example._replace(cleaned=cleaned), 3)
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    wanted = ["Contents", "Review", *HEADINGS[4:8], "For experts", "How this page was made"]
    assert headings == wanted
    assert "No row is flagged." in page
    assert "95 % interval: ? to" in page


def test_the_overfitting_gap_is_said_where_it_was_measured():
    history = [OuterStep(0, 1.0, 1.0, 0.5, 0.6, 1), OuterStep(1, 1.0, 0.1, 0.25, 0.5, 2)]
    assert "an overfitting gap of 0.25." in figures.gap(history)
    assert figures.gap([history[0]._replace(held_out=float("nan"))]) == ""
    assert figures.gap([]) == ""
    assert len(figures.convergence([history[0]._replace(held_out=float("nan"), stationarity=0.0)])) == 2


# === Which rows are shown =============================================================================================


def test_suspects_are_flagged_rows_the_worst_first():
    cleaned = cleaned_example.digits().cleaned
    chosen = suspects(cleaned, 500)
    assert set(chosen) == set(np.flatnonzero(cleaned.issue))
    assert np.all(np.diff(cleaned.quality[chosen]) >= 0)
    assert np.array_equal(suspects(cleaned, 5), chosen[:5])


def test_the_rows_that_teach_most_come_in_the_order_of_the_result():
    cleaned = cleaned_example.digits().cleaned
    assert np.array_equal(teaching(cleaned, 7), cleaned.review[:7])


def test_at_most_500_suspects_are_shown(tmp_path):
    page = sparse(tmp_path, cleaned_example.random(2000, 4, 900), 4)
    assert len(Elements(page).tables[0]) == SUSPECTS + 1
    assert "Flagged rows: 900, the worst 500 shown; the file of suspects contains all of them." in page


def test_a_suspect_is_shown_with_what_was_given(tmp_path):
    given = everything()
    cleaned, worst = given["cleaned"], int(suspects(given["cleaned"], 1)[0])
    heads, row = Elements(report(tmp_path, images=None)).tables[0][:2]
    shown = dict(zip(heads, row, strict=True))
    assert shown["id"] == f"id-{worst}"
    assert shown["given"] == DIGITS[given["given"][worst]]
    assert shown["suggested"] == DIGITS[cleaned.suggested[worst]]
    assert float(shown["quality"]) == pytest.approx(cleaned.quality[worst], abs=5e-4)
    assert shown["group"] == given["groups"][given["group_of"][worst]]
    assert shown["note"] == given["frame"]["note"][worst]
    assert int(shown["count"]) == given["frame"]["count"][worst]


def test_tables_of_many_kinds_of_columns(tmp_path):
    """Two columns of one name, missing values of every kind, dates, categories; and a table too wide to show."""
    n = len(cleaned_example.digits().given)
    odd = [
        pd.Series([None, 1] * (n // 2), dtype="Int64"),
        pd.Series(pd.Categorical(["a", None] * (n // 2))),
        pd.Series(pd.to_datetime(["2026-01-01", None] * (n // 2))),
        pd.Series([True, False] * (n // 2)),
    ]
    frame = pd.concat([*odd, *odd, *odd], axis=1)
    frame.columns = ["twice"] * 12
    page = report(tmp_path, frame=frame, images=None)
    assert "The first 8 of 12 columns are shown." in page
    cells = {row[-4] for row in Elements(page).tables[0][1:]}, {row[-2] for row in Elements(page).tables[0][1:]}
    assert cells[0] == {"", "1"}
    assert cells[1] == {"", "2026-01-01 00:00:00"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"given": np.zeros(3, int)}, "given must have one entry for each of the 600 rows, got 3"),
        ({"given": np.full(600, 10)}, r"given must be in 0..9, the places in labels, got 10 at row 0"),
        ({"ids": ["a"]}, "ids must have one entry"),
        ({"frame": pd.DataFrame({"a": [1]})}, "frame must have one entry"),
        ({"group_of": None}, "groups and group_of must be given together"),
        ({"group_of": np.full(600, 3)}, "group_of must be in 0..2"),
        ({"images": np.zeros((600, 4, 4, 2))}, "images must be"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_report(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        report(tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []


# === Text stays text, and the page stays small ========================================================================


def test_text_stays_text(tmp_path):
    page = report(tmp_path, **evil())
    elements = Elements(page).found
    assert [script.get("type") for script in elements["script"]] == ["application/json", None]
    assert all(image["src"].startswith("data:image/png;base64,") for image in elements["img"])
    assert not any(name.startswith("on") for found in elements.values() for one in found for name in one)
    assert page.count("&lt;/script&gt;") > 100


def test_nothing_is_fetched(tmp_path):
    page = report(tmp_path)
    elements = Elements(page).found
    assert set(elements).isdisjoint({"link", "iframe", "object", "embed", "base", "form"})
    assert not any("src" in script for script in elements["script"])
    assert all(link["href"].startswith("#") for link in elements["a"])
    assert not re.search(r"@import|url\(|https?:", page)


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    assert report(tmp_path) == report(tmp_path)
    assert report(tmp_path) != report(tmp_path, run=cleaned_example.RUN._replace(seed=8))


def test_large_pictures_and_long_texts_keep_the_page_below_4_mb(tmp_path):
    """Noise does not compress, and every letter of these texts is written as five."""
    n = 1000
    example = cleaned_example.random(n, 100, 900)
    colours = np.random.default_rng(0).integers(0, 256, (n, 48, 48, 3), dtype=np.uint8)
    frame = pd.DataFrame({f"{'&' * 500}{k}": ["'" * 500] * n for k in range(40)})
    page = sparse(tmp_path, example, 100, images=colours, frame=frame, ids=['"' * 500] * n, labels=["<" * 500] * 100)
    assert len(page.encode()) <= LARGEST_PAGE
    shown = int(re.search(r"the worst (\d+) shown", page)[1])
    assert 50 <= shown < SUSPECTS
    assert len(re.findall('class="item"', page)) >= shown
    only_pictures = sparse(tmp_path, example, 100, images=colours)
    assert "the worst 500 shown" in only_pictures
    assert len(only_pictures.encode()) <= LARGEST_PAGE


def test_long_texts_are_cut(tmp_path):
    page = report(tmp_path, ids=["x" * 1000] * 600)
    assert "x" * (LETTERS - 1) + "…" in page
    assert "x" * (LETTERS + 1) not in re.sub('data-called="x*"', "", page)  # decisions need the whole id


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_what_is_copied_from_the_page_is_no_formula():
    script = Path(figures.__file__).with_name("tables.js").read_text()
    function = "".join(
        re.search(rf"function {name}\(.*?\n}}\n", script, re.DOTALL)[0] for name in ("guarded", "quoted")
    )
    cells = ["=cmd()", "+1 555", "-2.5", "@x", "a=b", '=1,"2"', "-", "", "'s", "\n=1"]
    ask = f"{function}; console.log(JSON.stringify({json.dumps(cells)}.map(quoted)))"
    done = subprocess.run(["node", "-e", ask], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        "'=cmd()",
        "'+1 555",
        "-2.5",
        "'@x",
        "a=b",
        '"\'=1,""2"""',
        "'-",
        "",
        "''s",
        '"\'\n=1"',
    ]


# === What comes beside the suspects ===================================================================================


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((5, 8, 9), (5, 8, 9)),
        ((5, 8, 9, 1), (5, 8, 9)),
        ((5, 8, 9, 4), (5, 8, 9, 3)),  # with opacity
        ((5, 3, 8, 9), (5, 8, 9, 3)),  # channels first
        ((5, 1, 8, 9), (5, 8, 9)),
    ],
)
def test_pictures_of_every_layout_are_shown(shape, shown):
    assert _images(np.zeros(shape), 0).shape == shown
    assert _images(np.zeros(shape), 2).shape == (7, *shown[1:])


def test_a_group_without_rows_to_judge_is_left_out(tmp_path):
    """Trusted rows that were given apart are a group of their own, of which nothing is estimated."""
    cleaned = cleaned_example.digits().cleaned
    apart = NoiseShare(2, 0, Interval(0.0, 0.0, 1.0))
    page = report(tmp_path, cleaned=replace(cleaned, noise_by_group=[*cleaned.noise_by_group[:2], apart]))
    section = page[page.index('id="by-group"') : page.index('id="columns"')]
    assert "ann" in section
    assert "carl" not in section
