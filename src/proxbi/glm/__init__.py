"""Weighted linear models (softmax, logistic, squared) with fast oracles that make few passes over the data.

`linear_model` makes the bilevel problem, `design` the feature matrix; the losses are `Softmax`, `Logistic`, `Squared`.
"""

from proxbi.glm.layouts import Design as Design
from proxbi.glm.layouts import design as design
from proxbi.glm.losses import Logistic as Logistic
from proxbi.glm.losses import Loss as Loss
from proxbi.glm.losses import Softmax as Softmax
from proxbi.glm.losses import Squared as Squared
from proxbi.glm.problem import Linear as Linear
from proxbi.glm.problem import LinearModel as LinearModel
from proxbi.glm.problem import Rows as Rows
from proxbi.glm.problem import WeightedLoss as WeightedLoss
from proxbi.glm.problem import linear_model as linear_model
from proxbi.glm.streamed import StreamedLoss as StreamedLoss
from proxbi.glm.streamed import streamed_model as streamed_model
