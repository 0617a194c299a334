"""`d2e doctor`: checks of this machine and installation, a file per topic; findings come with a remedy."""
