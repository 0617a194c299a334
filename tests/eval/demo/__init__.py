"""Tests of eval.demo."""
