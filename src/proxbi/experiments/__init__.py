"""Experiments: settings in, rows out. Nothing here plots, prints or writes files."""
