"""Wrong labels of a table, with a review round

569 tumours with 30 measurements each. 15 % of the diagnoses are turned around, and no row is known to be right. Looking
at rows in the order of `label_quality_`, you meet most wrong labels early. Then somebody decides the 40 rows that teach
most (`review_order_`), and the cleaner is fitted again: among the rows that nobody looked at, it now flags more of the
wrong ones. The right panel compares the probabilities with the truth, in groups of rows (bars: one standard error).
"""

import numpy as np
from scipy.stats import beta
from sklearn.datasets import load_breast_cancer

from proxbi.cleaning import LabelCleaner
from shared import BLUE, GREEN, GREY, ORANGE, figure, options, save

given = options(__doc__)
table = load_breast_cancer(as_frame=True)
ROWS, DECIDED = (200, 20) if given.small else (len(table.target), 40)
names = np.array(["malignant", "benign"])
draw = np.random.default_rng(1)
rows = draw.permutation(len(table.target))[:ROWS]
X, truth = table.data.iloc[rows], names[table.target.iloc[rows]]
wrong = draw.uniform(size=ROWS) < 0.15
y = np.where(wrong, names[(truth == "malignant").astype(int)], truth)

cleaner = LabelCleaner().fit(X, y)
first, flagged = cleaner.label_quality_.copy(), cleaner.is_issue_.copy()
decided = cleaner.review_order_[:DECIDED]
y_decided = y.copy()
y_decided[decided] = truth[decided]  # here somebody looks at the rows
cleaner.fit(X, y_decided, trusted=decided, given=y)
second = cleaner.label_quality_

open_rows = np.setdiff1d(np.arange(ROWS), decided)
for name, found in (("first round", flagged), ("second round", cleaner.is_issue_)):
    hits = np.sum(found[open_rows] & wrong[open_rows])
    print(f"{name}: {found[open_rows].sum()} open rows flagged, {hits} of {wrong[open_rows].sum()} wrong labels")

canvas = figure(9.5, 3.8)
left, right = canvas.subplots(1, 2, width_ratios=[1.3, 1])
seen, total = np.arange(1, len(open_rows) + 1), wrong[open_rows].sum()
left.plot(seen, np.minimum(seen, total), color="black", ls=":", lw=1.2, label="if one knew")
left.plot(seen, seen * total / len(seen), color=GREY, ls="--", label="in any order")
rounds = (
    ("first round", first, flagged, BLUE, "o"),
    (f"after {DECIDED} decisions", second, cleaner.is_issue_, GREEN, "D"),
)
for name, quality, found, colour, marker in rounds:
    met = np.cumsum(wrong[open_rows][np.argsort(quality[open_rows])])
    last = found[open_rows].sum()
    left.plot(seen, met, color=colour)
    left.plot(last, met[last - 1], marker, color=colour, ms=9, label=f"{name}: {last} flagged, {met[last - 1]} wrong")
left.set(xlabel="rows looked at, the least likely label first", ylabel="wrong labels met", xlim=(0, 2.2 * total))
left.set_title(f"Where the {total} wrong labels are")
left.legend(loc="center right", fontsize=9)

edges = np.array([0.02, 0.1, 0.3, 0.7, 0.9, 0.98])
groups = np.digitize(second[open_rows], edges)
right.plot([0, 1], [0, 1], color=GREY, ls=":")
for group in range(len(edges) + 1):
    inside = open_rows[groups == group]
    if len(inside) >= 3:  # fewer say nothing
        right_ones, rows_inside = np.sum(~wrong[inside]), len(inside)
        low, high = beta.ppf([0.16, 0.84], right_ones + 0.5, rows_inside - right_ones + 0.5)  # Jeffreys' interval
        right.plot([second[inside].mean()] * 2, [low, high], color=ORANGE)
        size = 4 + np.sqrt(rows_inside) / 2
        right.plot(second[inside].mean(), right_ones / rows_inside, "o", color=ORANGE, ms=size)
right.set(xlabel="probability that the label is right", ylabel="share that is right", title="Can it be trusted?")
save(canvas, given)
