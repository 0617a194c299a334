"""Compare results that have measures, item by item."""
