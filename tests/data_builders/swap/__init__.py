"""Tests of data_builders.swap."""
