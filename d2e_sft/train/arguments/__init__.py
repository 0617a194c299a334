"""A training that is called from Python: its arguments, the rows that it is given, and what it leaves."""
