"""Attention over packed rows, one file per way of computing it."""
