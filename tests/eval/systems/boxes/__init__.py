"""Tests of eval.systems.boxes."""
