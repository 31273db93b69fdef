"""A page is a title and a list of blocks; the template beside this file lays them out."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Text(NamedTuple):
    """A heading (or none) and paragraphs of plain text."""

    heading: str
    paragraphs: Sequence[str]


class Rows(NamedTuple):
    """A table: rows that all have the same keys. Floats are shown by `digits` significant digits."""

    caption: str
    rows: Sequence[dict[str, Any]]
    digits: int = 4


class Picture(NamedTuple):
    """A matplotlib figure, drawn into the page as SVG."""

    caption: str
    figure: "Figure"


Block = Text | Rows | Picture


def write_page(path: Path, title: str, lead: str, blocks: Sequence[Block]) -> None:
    """Write the page to `path`."""
    shown = [{"kind": type(block).__name__, **block._asdict(), **_drawn(block)} for block in blocks]
    path.write_text(render("page.html", title=title, lead=lead, blocks=shown), encoding="utf-8")


def render(template: str, folder: str = "report", **values: Any) -> str:
    """The template of this name in a folder of the package, filled with these values, all of them escaped.

    It may include files beside it, and the style that all pages share.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("reports need Jinja2: pip install 'proxbi[clean]'.") from error
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("proxbi", place) for place in (folder, "report")])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["cell"] = _cell
    return environment.get_template(template).render(**values)


def _drawn(block: Block) -> dict[str, Any]:
    """For a picture, its SVG; matplotlib escapes the text in it, so it goes into the page as it is."""
    if not isinstance(block, Picture):
        return {}
    from markupsafe import Markup

    buffer = io.StringIO()
    block.figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return {"figure": Markup(svg[svg.index("<svg") :])}


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
