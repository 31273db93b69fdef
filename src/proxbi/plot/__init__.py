"""Rows -> figures. Nothing here runs an algorithm."""

from proxbi.plot.compare import compare as compare
from proxbi.plot.paper import figure1 as figure1
