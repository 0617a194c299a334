"""Results of scorers other than that of rows, side by side: what each item counts, paired tests, tables, plots."""
