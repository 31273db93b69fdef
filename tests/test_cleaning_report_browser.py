"""The report in a real browser: its tables sort, filter and copy, it tells the console and the network nothing, it
looks right on a phone and in print, and its letters can be read. What the workbench does is in
test_cleaning_workbench.py.
"""

import base64
import csv
import io
import re

import numpy as np
import pandas as pd
import pytest

import browser
import cleaned_example
from cleaned_example import everything, evil, report
from proxbi.cleaning.report.page import write_report
from proxbi.report import Curve, Picture, Rows, Text, lines, svg, write_page

needs_browser = pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.running(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def opened(tab, tmp_path):
    report(tmp_path, images=None)
    tab.open(tmp_path / "report.html")
    return tab


def column(tab: browser.Browser, head: str, table: str = "suspects") -> list[str]:
    """What is shown in a column, from the top down."""
    return tab.evaluate(
        f"""(() => {{
        const table = document.querySelector("#{table}-rows table");
        const head = Array.from(table.tHead.rows[0].cells).find((cell) => cell.textContent === "{head}");
        const rows = Array.from(table.tBodies[0].rows).filter((row) => row.offsetHeight > 0);
        return rows.map((row) => row.cells[head.cellIndex].textContent);
        }})()"""
    )


def click(tab: browser.Browser, head: str) -> None:
    tab.evaluate(
        f"""Array.from(document.querySelectorAll("#suspects-rows th span"))
        .find((span) => span.textContent === "{head}").click()"""
    )


def fill(tab: browser.Browser, control: str, value: str, event: str) -> None:
    tab.evaluate(
        f"""(() => {{
        const control = document.querySelector("#suspects-rows {control}");
        control.value = "{value}";
        control.dispatchEvent(new Event("{event}"));
        }})()"""
    )


def copy(tab: browser.Browser) -> str:
    """Click on "copy", and wait for what is said."""
    return tab.evaluate(
        """new Promise((done) => {
        const said = document.querySelector("#suspects-rows .said");
        new MutationObserver(() => done(said.textContent)).observe(said, { childList: true });
        document.querySelector("#suspects-rows .copy").click();
        })"""
    )


@needs_browser
def test_a_click_on_a_head_sorts(opened):
    ids = column(opened, "id")
    click(opened, "count")  # numbers, which as text would be in another order
    counts = column(opened, "count")
    assert counts == sorted(counts, key=int) != sorted(counts)
    assert sorted(column(opened, "id")) == sorted(ids)
    click(opened, "count")
    assert column(opened, "count") == counts[::-1]
    click(opened, "note")
    assert column(opened, "note") == sorted(column(opened, "note"))
    assert opened.evaluate('document.querySelectorAll("#suspects-rows [aria-sort]").length') == 1


@needs_browser
def test_missing_values_are_last_in_either_direction(opened):
    for order in (1, -1):
        click(opened, "ink")
        values = column(opened, "ink")
        known = [float(value) for value in values if value]
        assert 0 < len(known) < len(values)
        assert known == sorted(known, reverse=order < 0)
        assert values[len(known) :] == [""] * (len(values) - len(known))


@needs_browser
def test_heads_answer_the_keyboard(opened):
    before = column(opened, "count")
    opened.evaluate(
        """Array.from(document.querySelectorAll("#suspects-rows th span")).find((span) => span.textContent === "count")
        .dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }))"""
    )
    assert column(opened, "count") == sorted(before, key=int) != before


@needs_browser
def test_filters_change_the_rows_shown(opened):
    given, suggested, ids = (column(opened, name) for name in ("given", "suggested", "id"))
    fill(opened, "select", "3", "change")
    wanted = [name for name, *labels in zip(ids, given, suggested, strict=True) if "3" in labels]
    assert column(opened, "id") == wanted
    assert 0 < len(wanted) < len(ids)
    fill(opened, "input", wanted[0].upper(), "input")
    assert wanted[0] in column(opened, "id")
    assert len(column(opened, "id")) < len(wanted)
    fill(opened, "input", "nowhere to be found", "input")
    assert column(opened, "id") == []
    fill(opened, "input", "", "input")
    fill(opened, "select", "", "change")
    assert column(opened, "id") == ids
    opened.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert len(column(opened, "id", "teaching")) == 100


@needs_browser
def test_rows_are_copied_as_csv(opened):
    """The rows shown, as they are sorted; numbers with all their digits, and texts with commas and quotes."""
    fill(opened, "select", "3", "change")
    click(opened, "count")
    opened.call("Browser.resetPermissions", session=False)
    assert copy(opened) == "copy the text below"
    by_hand = opened.evaluate('document.querySelector("#suspects-rows textarea").value')
    opened.call(
        "Browser.grantPermissions", session=False, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    said = copy(opened)
    copied = opened.evaluate("navigator.clipboard.readText()")
    assert copied == by_hand

    rows = list(csv.DictReader(io.StringIO(copied)))
    given = everything()
    frame, cleaned = given["frame"], given["cleaned"]
    assert said == f"{len(rows)} rows copied"
    assert [row["id"] for row in rows] == column(opened, "id")
    for row in rows:
        place = int(row["id"].removeprefix("id-"))
        assert row["note"] == frame["note"][place]
        assert float(row["quality"]) == cleaned.quality[place]
        assert "nearest trusted rows" in row["why"]
        assert (float(row["ink"]) if row["ink"] else np.nan) == pytest.approx(frame["ink"][place], nan_ok=True)
    assert list(rows[0]) == ["id", "given", "suggested", "quality", "why", "group", "ink", "note", "count"]


@needs_browser
def test_the_page_is_quiet_and_asks_for_nothing(tab, tmp_path):
    report(tmp_path, **evil())
    tab.open(tmp_path / "report.html")
    fill(tab, "input", "script", "input")
    copy(tab)
    page, *others = tab.requests()
    assert page == (tmp_path / "report.html").as_uri()
    assert all(address.startswith("data:") for address in others)
    assert tab.complaints() == []
    assert tab.evaluate("[document.scripts.length, typeof window.hacked]") == [2, "undefined"]
    images = "Array.from(document.images)"
    assert tab.evaluate(f"Promise.all({images}.map((image) => image.decode())).then((all) => all.length)") > 40
    assert tab.evaluate(f"{images}.every((image) => image.naturalWidth === 8)")


@needs_browser
def test_an_unquiet_page_would_be_noticed(tab, tmp_path):
    """The negative control of the test above; and the page's own policy stops what might be slipped into it."""
    slipped = "<script>console.error('oh'); fetch('http://127.0.0.1:9/').catch(() => {});</script></body>"
    page = report(tmp_path).replace("</body>", slipped)
    (tmp_path / "report.html").write_text(page)
    tab.open(tmp_path / "report.html")
    assert len(tab.complaints()) >= 2
    assert not any(address.startswith("http") for address in tab.requests())
    (tmp_path / "report.html").write_text(re.sub("<meta http-equiv.*?>", "", page))
    tab.open(tmp_path / "report.html")
    assert "http://127.0.0.1:9/" in tab.requests()


@needs_browser
@pytest.mark.parametrize("width", [360, 390, 1100])
def test_nothing_sticks_out_sideways(opened, width):
    opened.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    assert opened.evaluate("innerWidth") == width
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    smallest = opened.evaluate(
        """Math.min(...Array.from(document.querySelectorAll("svg"),
        (svg) => 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
    )
    assert smallest >= 8.5  # pixels of a letter in a chart


@needs_browser
@pytest.mark.parametrize("pictures", [True, False])
def test_the_page_ends_after_its_foot(tab, tmp_path, pictures):
    """Words for screen readers in a list that scrolls once made it several times as long, and empty."""
    report(tmp_path, **({} if pictures else {"images": None}))
    tab.open(tmp_path / "report.html")
    tab.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    foot = tab.evaluate("document.getElementById('foot').getBoundingClientRect().bottom + scrollY")
    assert tab.evaluate("document.documentElement.scrollHeight") <= foot + 200


@needs_browser
def test_print_shows_24_rows_and_no_controls_in_ink_on_white(opened):
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    paper = "getComputedStyle(document.body).backgroundColor"
    shown = """(() => { const box = document.querySelector("#suspects-rows .rows");
        return [box.scrollHeight <= box.clientHeight, document.querySelector(".controls").offsetHeight > 0]; })()"""
    opened.call("Emulation.setEmulatedMedia", media="screen", features=dark)
    assert opened.evaluate(paper) == "rgb(22, 24, 26)"
    assert opened.evaluate(shown) == [False, True]
    opened.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert opened.evaluate(paper) == "rgb(255, 255, 255)"
    assert opened.evaluate(shown) == [True, False]
    assert len(column(opened, "id")) == 24
    opened.call("Emulation.setEmulatedMedia", media="")
    opened.call("Emulation.clearDeviceMetricsOverride")
    pages = base64.b64decode(opened.call("Page.printToPDF")["data"])
    assert max(int(count) for count in re.findall(rb"/Count (\d+)", pages)) <= 6


CONTRAST = """(() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => { const v = text.match(/[\\d.]+/g).map(Number); return v.length > 3 ? v : [...v, 1]; };
  const over = (top, under) => [0, 1, 2].map((k) => top[3] * top[k] + (1 - top[3]) * under[k]);
  const paper = (node) => {
    if (!node) return [255, 255, 255];
    const own = parse(getComputedStyle(node).backgroundColor);
    return own[3] === 1 ? own : over(own, paper(node.parentElement));
  };
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.getClientRects().length || node.closest("script")) continue;
    const style = getComputedStyle(node), below = paper(node);
    const ink = over(parse(node.closest("svg") ? style.fill : style.color), below);
    const [a, b] = [light(ink), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push([node.tagName + "." + node.className, walk.currentNode.textContent.trim(), ratio]);
  }
  return bad;
})()"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("pictures", [True, False])
def test_all_letters_have_a_contrast_of_at_least_4_5(tab, tmp_path, scheme, pictures):
    report(tmp_path, **({} if pictures else {"images": None}))
    tab.open(tmp_path / "report.html")
    tab.call("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert tab.evaluate(CONTRAST) == []
    tab.evaluate("document.querySelector('.headline').style.color = '#888'")  # 3.5 on white: the negative control
    tab.evaluate("document.body.style.background = '#fff'")
    assert tab.evaluate(CONTRAST) != []
    tab.call("Emulation.setEmulatedMedia", media="", features=[])


@needs_browser
def test_a_hundred_thousand_flagged_rows_make_a_small_page_that_opens_at_once(tab, tmp_path):
    example = cleaned_example.random(120_000, 10, 100_000)
    frame = pd.DataFrame(
        np.random.default_rng(0).normal(size=(120_000, 6)), columns=[f"measured_{k}" for k in range(6)]
    )
    write_report(
        tmp_path / "report.html",
        example.cleaned,
        labels=cleaned_example.DIGITS,
        given=example.given,
        frame=frame,
        features=frame.to_numpy(np.float32),
    )
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    tab.open(tmp_path / "report.html")
    opened = tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < opened < 3000  # milliseconds: what the page must show, by the browser's own clock


@needs_browser
def test_wide_tables_fit_on_paper(tab, tmp_path):
    """Eight columns of numbers and one long word, and the matrix of 20 classes with long names."""
    example = cleaned_example.random(500, 20, 100)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 7)), columns=[f"measured_{k}" for k in range(7)])
    frame.insert(0, "word", "x" * 80)
    labels = [f"a class with a long name, number {k}" for k in range(20)]
    write_report(tmp_path / "report.html", example.cleaned, labels=labels, given=example.given, frame=frame)
    tab.open(tmp_path / "report.html")
    tab.call("Emulation.setEmulatedMedia", media="print")
    tab.call("Emulation.setDeviceMetricsOverride", width=720, height=1000, deviceScaleFactor=1, mobile=False)  # A4
    assert tab.evaluate("document.documentElement.scrollWidth") <= 720
    assert tab.evaluate('document.querySelector(".matrix").offsetWidth') > 300
    tab.call("Emulation.setEmulatedMedia", media="")


# The other pages: of the paper, the theory, the benchmark and a fit.


def plain_page(folder):
    """A page with everything that a block can be."""
    curves = [Curve(f"curve {k}", [1, 10, 100], [1, 2 + k, 3 + k], band=([1] * 3, [4 + k] * 3)) for k in range(6)]
    charts = [lines(curves, "step", "gap", log=True, log_x=True, level=2, title="A chart") for _ in range(3)]
    table = [{f"column {k}": k / 7 for k in range(20)}] * 3
    blocks = [Text("Words", ["A sentence. " * 30]), Picture("Charts", charts), Rows("A wide table", table)]
    path = folder / "page.html"
    write_page(path, "A page", "command --option value", blocks)
    return path


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_other_pages_are_quiet_readable_and_as_wide_as_the_screen(tab, tmp_path, scheme, width):
    page = plain_page(tmp_path)
    tab.open(page)
    tab.call("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    assert tab.requests() == [page.as_uri()]
    assert tab.complaints() == []
    assert tab.evaluate(CONTRAST) == []
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 26)"}[scheme]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    sizes = "Array.from(document.querySelectorAll('svg'), (one) => Math.round(one.getBoundingClientRect().width))"
    assert min(tab.evaluate(sizes)) > 0.75 * min(width, svg.WIDTH), "letters of 9 pixels or more"
    tab.call("Emulation.setEmulatedMedia", media="", features=[])
    tab.call("Emulation.clearDeviceMetricsOverride")


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_of_charts_can_be_seen_and_told_apart(tab, tmp_path, scheme):
    """A contrast of 3 to the paper, as WCAG asks of graphics; and no two colours are alike."""
    tab.open(plain_page(tmp_path))
    tab.call("Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}])
    strokes = """Array.from(document.querySelector("svg").querySelectorAll("polyline"),
        (line) => getComputedStyle(line).stroke)"""
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    colours = [rgb(each) for each in tab.evaluate(strokes)]
    assert len({tuple(each) for each in colours}) == svg.COLOURS
    assert min(contrast(each, rgb(paper)) for each in colours) >= 3
    tab.call("Emulation.setEmulatedMedia", media="", features=[])


def rgb(text):
    return np.array(re.findall(r"\d+", text), float) / 255


def contrast(one, other):
    light = sorted(
        0.05 + np.where(each <= 0.03928, each / 12.92, ((each + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        for each in (one, other)
    )
    return light[1] / light[0]
