"""Decoding a benchmark: settings, engines, and answers kept as they come."""
