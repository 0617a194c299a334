"""What is printed, as wide as the terminal: messages folded, tables in parts."""
