"""Tables larger than memory: many Parquet files, or a Dask data frame, in one process or on a cluster.

The method is the same. Everything is learned from a sample of the rows (`method.drawing`), except the regression if
that is fitted to all rows; the rest is map and reduce over blocks of rows: `look` at labels, `take` the rows of the
sample, add up all rows (`adding.py`), and judge every block. `proxbi._engine` decides where that happens, `parquet.py`
reads and writes files, `job.py` is the work of `proxbi clean 'data/*.parquet' --out cleaned/`, and `frame.py` that of
`LabelCleaner.fit` on a Dask data frame.
"""
