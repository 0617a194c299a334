"""Datasets' own files: download, archives, rows."""
