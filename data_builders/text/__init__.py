"""Sentences, stems, excerpts and events."""
