"""Tests of data_builders.habit."""
