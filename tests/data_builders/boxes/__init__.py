"""Tests of data_builders.boxes."""
