"""Wrong labels of a table: how many rows must be looked at?

569 tumours with 30 measurements each; 15 % of the diagnoses are turned around, and no row is known to be right. If
you look at the rows in the order that `LabelCleaner` suggests, you meet nearly all wrong labels early. The second
panel says how far its probabilities can be trusted: of the labels that it calls 20 % likely, about 20 % should be
right.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

from proxbi.cleaning import LabelCleaner
from shared import BLUE, GREY, ORANGE, figure, options, save

given = options(__doc__)
data = load_breast_cancer(as_frame=True)
names = np.array(["malignant", "benign"])
rows = np.random.default_rng(0).permutation(len(data.target))[: 200 if given.small else None]
X, truth = data.data.iloc[rows], names[data.target.iloc[rows]]

draw = np.random.default_rng(1)
wrong = draw.uniform(size=len(truth)) < 0.15
y = np.where(wrong, names[(truth == "malignant").astype(int)], truth)
cleaner = LabelCleaner().fit(X, y)
quality = cleaner.label_quality_
print(
    f"{cleaner.is_issue_.sum()} flagged, {np.sum(cleaner.is_issue_ & wrong)} of {wrong.sum()} wrong labels among them"
)

canvas = figure(9, 3.8)
left, right = canvas.subplots(1, 2)
seen = np.arange(1, len(y) + 1)
left.plot(seen, np.cumsum(wrong[np.argsort(quality)]), color=BLUE, label="least likely labels first")
left.plot(seen, np.minimum(seen, wrong.sum()), color=GREY, ls=":", label="if one knew")
left.plot(seen, seen * wrong.mean(), color=ORANGE, ls="--", label="in any order")
left.axvline(cleaner.is_issue_.sum(), color=GREY, lw=1)
left.text(cleaner.is_issue_.sum() + 6, 2, "flagged", color="#55595f")
left.set(xlabel="rows looked at", ylabel="wrong labels met", title="Where the wrong labels are")
left.legend(loc="center right")

edges = np.array([0, 0.02, 0.1, 0.3, 0.7, 0.9, 0.98, 1.0])
bins = np.digitize(quality, edges[1:-1])
for place in range(len(edges) - 1):
    inside = bins == place
    if inside.sum() >= 3:
        share = np.mean(~wrong[inside])
        error = np.sqrt(share * (1 - share) / inside.sum())
        right.errorbar(
            quality[inside].mean(), share, error, fmt="o", color=BLUE, ms=4 + np.sqrt(inside.sum()) / 2, capsize=3
        )
right.plot([0, 1], [0, 1], color=GREY, ls=":")
right.set(
    xlabel="probability that the label is right, as told", ylabel="share that is right", title="Is the probability one?"
)
save(canvas, given)
