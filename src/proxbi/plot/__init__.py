"""Rows -> figures. Nothing here runs an algorithm."""

from proxbi.plot.cleaning import cleaning as cleaning
