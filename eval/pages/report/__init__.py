"""A self-contained HTML page about one or more runs; `eval.pages.report.page.write_report` makes it."""
