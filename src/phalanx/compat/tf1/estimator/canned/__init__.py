"""The canned estimators: linear, deep, wide and deep, and baselines."""
