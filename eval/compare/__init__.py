"""Finished runs side by side: tables, tests, error patterns."""
