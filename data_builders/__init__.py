"""Builders that turn the public event-reasoning datasets into EventSample rows."""
