"""Flat files of predictions, JSON lines or CSV: one prediction a line, and templates to fill in."""
