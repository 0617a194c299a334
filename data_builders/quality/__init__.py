"""What is known of built samples: overlap with tests, statistics, the quality judge."""
