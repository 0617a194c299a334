"""A study: one recipe over several axes and seeds, read as curves over training steps."""
