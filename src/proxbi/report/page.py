"""A page is a title and a list of blocks; the template beside this file lays them out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proxbi.report.markup import Svg


class Text(NamedTuple):
    """A heading (or none) and paragraphs of plain text.

    Example: `write_page`.
    """

    heading: str
    """Empty for none."""
    paragraphs: Sequence[str]
    """Strings; markup in them is shown as text."""


class Rows(NamedTuple):
    """A table: rows that all have the same keys. Floats are shown by `digits` significant digits.

    Example: `write_page`.
    """

    caption: str
    """Above the table."""
    rows: Sequence[dict[str, Any]]
    """Dictionaries, whose keys are the columns."""
    digits: int = 4
    """Significant digits of floats."""


class Picture(NamedTuple):
    """Charts side by side, as many as the page is wide enough for, as `lines` makes them.

    Example: `write_page`.
    """

    caption: str
    """Below the charts."""
    charts: Sequence[Svg]
    """What `lines` returns."""


Block = Text | Rows | Picture


def write_page(path: Path, title: str, lead: str, blocks: Sequence[Block]) -> None:
    """Write an HTML page of texts, tables and charts.

    **Arguments:**

    - `path`: the file, one page without links to other files.
    - `title`, `lead`: the heading, and a sentence below it.
    - `blocks`: `Text`, `Rows` and `Picture`, in this order or any other.

    >>> from tempfile import TemporaryDirectory
    >>> from proxbi.report import Curve, lines
    >>> chart = lines([Curve("gap", [1, 10, 100], [1.0, 0.1, 0.01])], "step", "gap", log=True, log_x=True)
    >>> with TemporaryDirectory() as folder:
    ...     page = Path(folder, "page.html")
    ...     write_page(page, "A run", "200 steps", [Text("Gap", ["It falls."]), Picture("Gap by step", [chart])])
    ...     page.read_text(encoding="utf-8").count("<svg")
    1
    """
    shown = [{"kind": type(block).__name__, **block._asdict()} for block in blocks]
    path.write_text(render("page.html", title=title, lead=lead, blocks=shown), encoding="utf-8")


def render(template: str, folder: str = "report", **values: Any) -> str:
    """Fill the template of this name, in a directory of the package, with these values. All values are escaped.

    A template may include files in its directory, and the style that all pages share.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("reports need Jinja2: pip install 'proxbi[clean]'.") from error
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("proxbi", place) for place in (folder, "report")])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["cell"] = _cell
    return environment.get_template(template).render(**values)


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
