"""Tests of eval.pages.inspection."""
