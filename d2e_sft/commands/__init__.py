"""One file a verb of the `d2e` command: options and output, no logic."""
