"""Samples, prompts and token views."""
