"""What a run would do, without training: rows, lengths, memory, steps."""
