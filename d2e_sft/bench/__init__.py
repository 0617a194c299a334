"""Benchmarks: engines measured side by side in one process."""
