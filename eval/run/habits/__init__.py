"""A model's habits: what it answers without the context (`d2e data tag`)."""
