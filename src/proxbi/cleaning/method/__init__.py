"""The method: which labels are wrong, and how much each row should count.

`clean.py` runs all of it on a `table.py`. `drawing.py` draws the rows of a large table that the method learns from, and
`memory.py` checks that they fit. `bilevel.py` is the bilevel problem, solved on samples from `samples.py`.
`weightings.py` lists the weightings of rows, built from `reweighting.py` and, for the paper's own, `free.py`;
`selection.py` compares them. `scoring.py` scores all rows, with the regression of `ridge.py` on the features of
`kernel.py` and with other `learners.py`; `decision.py` decides, using the `noise_model.py`. `label_noise.py` is the
simpler noise model of the bilevel problem. `summary.py` computes rates with intervals and writes the warnings.
"""
