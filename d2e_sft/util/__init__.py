"""Errors, files, tables and pages; independent of the method."""
