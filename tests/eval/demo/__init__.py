"""Tests of eval.pages.demo."""
