"""From sources to a dataset on disk: suites, mixture, manifest, card."""
