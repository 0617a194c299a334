"""Sentences, stems and excerpts."""
