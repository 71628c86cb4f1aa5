"""The layer between a GPU cluster and the model code."""
