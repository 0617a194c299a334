"""Models on the Hub: the export, its card, and the way there and back."""
