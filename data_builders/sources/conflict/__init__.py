"""The datasets in which the context may contradict what a model would answer without it."""
