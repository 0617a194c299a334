"""What is known of built samples: contamination, duplicates, statistics, the quality judge."""
