"""The cleaner in scikit-learn code: an estimator, its final models, a scorer."""
