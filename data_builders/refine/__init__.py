"""Refined contexts: which sentences and clauses an answer needs."""
