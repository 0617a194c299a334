"""Attention over packed rows, one file a way of computing it."""
