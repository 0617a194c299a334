"""The four related systems, each a benchmark with the scorer of its paper: CREPE, OpenPI2.0, Boxes, WIQA."""
