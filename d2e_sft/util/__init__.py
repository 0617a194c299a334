"""Errors, files, tables and pages; nothing of the method."""
