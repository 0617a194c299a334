"""Verbs of the `d2e` command that evaluate, compare and report."""
