"""What predicted entity states are good for: CREPE and planning (paper section 4.3)."""
