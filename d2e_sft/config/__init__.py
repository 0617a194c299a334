"""What a user can set, typed: recipes and decoding."""
