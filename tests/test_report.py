"""The HTML page: everything given to it stays text, and nothing in it reaches for the network."""

import re

from proxbi.plot._style import figure
from proxbi.report import Picture, Rows, Text, write_page

EVIL = '<script>alert(1)</script> & "quotes"'


def page(tmp_path, blocks):
    path = tmp_path / "page.html"
    write_page(path, EVIL, EVIL, blocks)
    return path.read_text()


def test_text_stays_text(tmp_path):
    canvas = figure(3, 2)
    canvas.subplots().set_title(EVIL)
    blocks = [Text(EVIL, [EVIL]), Rows(EVIL, [{EVIL: EVIL, "number": 1.5}]), Picture(EVIL, canvas)]
    html = page(tmp_path, blocks)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 7


def test_nothing_is_fetched(tmp_path):
    html = page(tmp_path, [Picture("a figure", figure(3, 2))])
    assert not re.search(r"<(img|link|iframe|script)\b", html)
    assert not re.search(r"(src|href)=\"http", html)
    assert "@import" not in html


def test_cells_are_shown_readably(tmp_path):
    html = page(tmp_path, [Rows("", [{"a": 0.123456, "b": None, "c": True, "d": 7, "e": "text"}], 3)])
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells == ["0.123", "", "yes", "7", "text"]
