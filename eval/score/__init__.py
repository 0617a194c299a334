"""From an answer to a score: extraction, metrics, statistics."""
