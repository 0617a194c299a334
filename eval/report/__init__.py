"""A self-contained HTML page about one or more runs; `eval.report.page.write_report` makes it."""
