"""Tests of eval.inspection."""
