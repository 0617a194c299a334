"""The published values of the papers' tables, and ours beside them."""
