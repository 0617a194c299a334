"""A grid of recipes, trained and scored."""
