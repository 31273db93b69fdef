"""The HTML page: everything given to it stays text, and nothing in it reaches for the network."""

import re
from xml.etree import ElementTree

import pytest

from proxbi.report import Curve, Picture, Rows, Text, lines, svg, write_page

EVIL = '<script>alert(1)</script> & "quotes"'


def page(tmp_path, blocks):
    path = tmp_path / "page.html"
    write_page(path, EVIL, EVIL, blocks)
    return path.read_text()


def chart(**options):
    curves = [Curve(EVIL, [1, 2], [1, 2], band=([1, 1], [2, 3])), Curve("other", [1, 2], [2, 1], dots=True)]
    return lines(curves, EVIL, EVIL, title=EVIL, **options)


def test_text_stays_text(tmp_path):
    blocks = [Text(EVIL, [EVIL]), Rows(EVIL, [{EVIL: EVIL, "number": 1.5}]), Picture(EVIL, [chart(level=1.0)])]
    html = page(tmp_path, blocks)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 7


def test_nothing_is_fetched(tmp_path):
    html = page(tmp_path, [Picture("a figure", [chart(log=True, log_x=True)])])
    assert not re.search(r"<(img|link|iframe|script)\b", html)
    assert not re.search(r"(src|href)=\"http", html)
    assert "@import" not in html
    assert "Content-Security-Policy" in html


def test_pages_are_dark_where_the_reader_is_and_their_tables_have_heads(tmp_path):
    html = page(tmp_path, [Rows("a table", [{"a": 1, "b": 2}])])
    assert "prefers-color-scheme: dark" in html
    assert html.count('<th scope="col">') == 2
    assert 'role="region" aria-label="a table"' in html


def test_cells_are_shown_readably(tmp_path):
    html = page(tmp_path, [Rows("", [{"a": 0.123456, "b": None, "c": True, "d": 7, "e": "text"}], 3)])
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells == ["0.123", "", "yes", "7", "text"]


def test_a_file_of_charts_stands_alone():
    file = ElementTree.fromstring(svg.file([chart(), chart(log=True), lines([], "x", "y")]))
    name = "{http://www.w3.org/2000/svg}"
    assert file.tag == f"{name}svg"
    placed = file.findall(f"{name}svg")
    assert [float(each.get("x")) for each in placed] == [0, svg.WIDTH, 2 * svg.WIDTH]
    assert float(file.get("width")) == 3 * svg.WIDTH
    assert float(file.get("height")) == max(float(each.get("height")) for each in placed)
    style = file.find(f"{name}style").text
    assert "--blue" in style
    assert "--paper" not in style, "a file is not dark: it has its own white paper"


@pytest.mark.parametrize("place", range(svg.COLOURS))
def test_every_colour_of_a_curve_is_in_the_style(place):
    drawn = lines([Curve(str(k), [0, 1], [k, k]) for k in range(svg.COLOURS)], "x", "y")
    assert f'class="c{place} line d{place % svg.DASHES}"' in drawn
    assert f"svg .c{place} " in svg.file([drawn])
