"""Refined contexts: which sentences an answer needs."""
