"""Tables that are not in memory: many Parquet files, or a Dask data frame, in one process or on a cluster.

The same method on the same rows. A sample of the rows (`method.drawing`) teaches all that there is to learn, but for
the regression where that is fitted to all rows; what is left is map and reduce over blocks of rows: `look` at labels,
`take` the rows of the sample, add up all rows (`adding.py`), and judge every block. `proxbi._engine` says where that
happens, `parquet.py` reads and writes files, `job.py` is the work of `proxbi clean 'data/*.parquet' --out cleaned/`,
and `frame.py` that of `LabelCleaner.fit` on a Dask data frame.
"""
