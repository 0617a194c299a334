"""Compare finished runs: tables, paired tests, error patterns."""
