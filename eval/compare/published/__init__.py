"""The published values of the papers' tables, and ours next to them."""
