"""How elements, names and numbers are written into a page."""

import json
from html import escape
from math import isfinite
from typing import Any


class Svg(str):
    """Markup that is not escaped: Jinja2 calls `__html__`."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def tag(name: str, *children: str, **attributes: float | str) -> Svg:
    """One element. Children that are not `Svg` are text, and escaped; `_` in the name of an attribute stands for `-`.

    >>> print(tag("text", "a < b", x=1.25, class_="axis"))
    <text x="1.25" class="axis">a &lt; b</text>
    """
    inside = "".join(child if isinstance(child, Svg) else escape(child) for child in children)
    named = "".join(f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"' for key, value in attributes.items())
    return Svg(f"<{name}{named}>{inside}</{name}>")


def script_data(value: Any) -> Svg:
    """JSON for a `<script type="application/json">`: nothing in it can end the element or begin a comment.

    >>> print(script_data({"label": "</script><!--"}))
    {"label": "\\u003c/script\\u003e\\u003c!--"}
    """
    text = json.dumps(value)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Svg(text)


def short(text: str, most: int) -> str:
    """`text`, cut to this length with an ellipsis.

    >>> short("annotator", 6)
    'annot…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def percent(share: float) -> str:
    """A share in per cent; a dash if it is not known.

    >>> percent(0.0421), percent(1), percent(float("nan"))
    ('4.2 %', '100.0 %', '–')
    """
    return f"{100 * share:.1f} %" if isfinite(share) else "–"


def number(value: float) -> str:
    """A number with four significant digits, or a large integer in full, with commas.

    >>> number(0.123456), number(20000), number(float("nan"))
    ('0.1235', '20,000', '–')
    """
    if not isfinite(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def _attribute(value: float | str) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
