"""`d2e doctor`: what this machine and installation can do, checked a topic a file, each finding with a remedy."""
