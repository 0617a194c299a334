"""Scoring, comparison and reports for event-reasoning models."""
