"""`d2e bench all`: one table of what each task costs, beside what a user would take instead."""
