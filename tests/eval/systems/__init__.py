"""Tests of eval.systems."""
