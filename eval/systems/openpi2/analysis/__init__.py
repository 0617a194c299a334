"""What the paper says about the data and about errors: statistics, classes of errors, salience by procedure."""
