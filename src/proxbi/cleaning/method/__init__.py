"""The method: which labels are wrong, and how much each row should count.

`clean.py` is the whole of it, `table.py` what it works on, and `drawing.py` draws the rows of a large table that it
learns from. The bilevel problem is in `bilevel.py`, solved on samples drawn by `samples.py`. `weightings.py` has the
weightings of rows, made of `reweighting.py` and, for the paper's one, `free.py`; `selection.py` compares them.
`scoring.py` has all rows judged: by our `ridge.py` regression on the features of `kernel.py` and by other
`learners.py`; `decision.py` decides, with the `noise_model.py`. `label_noise.py` is the simpler model inside of the
bilevel problem. `summary.py` says in words and intervals what came out.
"""
