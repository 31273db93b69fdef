"""Wrong labels of images, with a review round

Half of the labels of 800 digits are wrong, and only 30 further ones are trusted. `LabelCleaner` finds most of the wrong
ones, and suggests another label. The pictures are suspects, from the surest to the most doubtful. Then somebody decides
the 80 rows that teach most (`review_order_`), and the cleaner is fitted again. The bars count the mistakes of both
rounds, among the rows that nobody looked at.
"""

import numpy as np
from sklearn.datasets import load_digits

from proxbi import datasets
from proxbi.cleaning import LabelCleaner
from shared import BLUE, GREEN, GREY, ORANGE, figure, options, picture, save

given = options(__doc__)
ROWS, TRUSTED, DECIDED = (250, 30, 20) if given.small else (800, 30, 80)

images, digits = load_digits(return_X_y=True)
order = np.random.default_rng(1).permutation(len(digits))[: ROWS + TRUSTED]
X, truth = images[order].reshape(-1, 8, 8), digits[order]
trusted = np.arange(len(order)) >= ROWS
y = np.where(trusted, truth, datasets.symmetric_noise(truth, 0.5, 0))
wrong = y != truth

cleaner = LabelCleaner().fit(X, y, trusted=trusted)
first, suggested = cleaner.is_issue_.copy(), cleaner.suggested_label_.copy()
suspects = np.flatnonzero(first)[np.argsort(cleaner.label_quality_[first])]
shown = suspects[np.linspace(0, len(suspects) - 1, 32).astype(int)]
decided = np.isin(np.arange(len(y)), cleaner.review_order_[:DECIDED])
y_decided = np.where(decided, truth, y)  # here somebody looks at the images
cleaner.fit(X, y_decided, trusted=trusted | decided, given=y)

open_rows = ~(trusted | decided)
rounds = {"first\nround": first[open_rows], f"after {DECIDED}\ndecisions": cleaner.is_issue_[open_rows]}
missed = [np.sum(wrong[open_rows] & ~flagged) for flagged in rounds.values()]
false = [np.sum(~wrong[open_rows] & flagged) for flagged in rounds.values()]
print(f"{wrong[open_rows].sum()} wrong labels among {open_rows.sum()}; missed {missed}, flagged though right {false}")

canvas = figure(9.5, 4.2)
left, side = canvas.subfigures(1, 2, width_ratios=[2.2, 1])
for axes, row in zip(left.subplots(4, 8).flat, shown, strict=True):
    agrees = suggested[row] == truth[row]
    picture(axes, X[row], f"{y[row]} → {suggested[row]}", GREEN if agrees else ORANGE)
title = "Label given → label suggested (green: it is the true one)"
left.suptitle(title, fontsize=11.5, fontweight="bold", x=0.02, ha="left")
axes = side.subplots()
for shift, heights, colour, name in ((-0.2, missed, BLUE, "missed"), (0.2, false, GREY, "flagged, though right")):
    axes.bar_label(axes.bar(np.arange(2) + shift, heights, 0.38, color=colour, label=name))
axes.set(title=f"Mistakes among {open_rows.sum()} rows", ylim=(0, 1.35 * max(*missed, *false)))
axes.set_xticks(np.arange(2), list(rounds))
axes.legend(loc="upper right", fontsize=9)
axes.grid(visible=False)
save(canvas, given)
