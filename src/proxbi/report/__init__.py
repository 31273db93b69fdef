"""Self-contained HTML pages of texts, tables and charts. They need no network, and all text is escaped."""

from proxbi.report.page import Picture as Picture
from proxbi.report.page import Rows as Rows
from proxbi.report.page import Text as Text
from proxbi.report.page import write_page as write_page
from proxbi.report.svg import Curve as Curve
from proxbi.report.svg import lines as lines
