"""HTML pages: report, inspection, demo."""
