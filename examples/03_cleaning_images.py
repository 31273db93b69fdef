"""Wrong labels of images, with a review round

`LabelCleaner` finds the wrong labels among 1,000 digits, 30 % of which are spoiled; 100 rows are trusted. Each
picture is a suspect, with the label given and the label suggested. Then somebody decides the 60 rows that teach most
(`review_order_`), and the second round knows more.
"""

import numpy as np
from sklearn.datasets import load_digits

from proxbi import datasets
from proxbi.cleaning import LabelCleaner
from shared import BLUE, GREEN, GREY, ORANGE, figure, options, picture, save

given = options(__doc__)
ROWS, TRUSTED, DECIDED = (300, 50, 20) if given.small else (1000, 100, 60)

images, truth = load_digits(return_X_y=True)
order = np.random.default_rng(1).permutation(len(truth))[: ROWS + TRUSTED]
X, truth = images[order].reshape(-1, 8, 8), truth[order]
known = np.arange(len(order)) >= ROWS
y = np.where(known, truth, datasets.symmetric_noise(truth, 0.3, 0))
wrong = y != truth


def f1(flagged, rows):
    hits = np.sum(flagged & wrong & rows)
    return 2 * hits / (np.sum(flagged & rows) + np.sum(wrong & rows))


cleaner = LabelCleaner().fit(X, y, trusted=known)
first, suggested = cleaner.is_issue_.copy(), cleaner.suggested_label_.copy()
suspects = np.argsort(cleaner.label_quality_ + 2.0 * ~first)[:32]
decided = cleaner.review_order_[:DECIDED]
y_decided = y.copy()
y_decided[decided] = truth[decided]  # here somebody looks at the images
now_known = known | np.isin(np.arange(len(y)), decided)
cleaner.fit(X, y_decided, trusted=now_known, given=y)
open_rows = ~now_known
scores = {"first round": f1(first, open_rows), f"after {DECIDED} decisions": f1(cleaner.is_issue_, open_rows)}
print(scores)

canvas = figure(9.5, 4.2)
left, right = canvas.subfigures(1, 2, width_ratios=[2.6, 1])
grid = left.subplots(4, 8)
for axes, row in zip(grid.flat, suspects, strict=True):
    right_one = suggested[row] == truth[row]
    picture(axes, X[row], f"{y[row]} → {suggested[row]}", GREEN if right_one else ORANGE)
left.suptitle(
    "The first suspects: label given → suggested (green: it is right)",
    fontsize=11.5,
    fontweight="bold",
    x=0.02,
    ha="left",
)
axes = right.subplots()
bars = axes.bar(list(scores), list(scores.values()), color=[GREY, BLUE], width=0.6)
axes.bar_label(bars, fmt="%.3f")
axes.set(ylim=(0.8, 1), title="F1 among open rows")
axes.tick_params(axis="x", labelsize=8.5)
axes.grid(visible=False)
save(canvas, given)
