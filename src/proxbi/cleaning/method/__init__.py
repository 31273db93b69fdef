"""The method: which labels are wrong, and how much each row should count.

`cleaner.py` is the whole of it, `table.py` what it works on. The bilevel problem is in `settings.py`, on samples drawn
by `tuning.py`; `ways.py` has the ways to weigh rows, made of the `rounds.py` of fitting and weighing, and `free.py` the
paper's; `contest.py` picks one and `judging.py` applies it to all rows. Below them stand the `noise.py` model, the
`ridge.py` regression and its `kernel.py`. `summary.py` says in words and intervals what came out.
"""
