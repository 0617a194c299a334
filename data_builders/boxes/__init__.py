"""The Boxes task (Kim & Schuster, ACL 2023): world, wordings, splits, file format and data source."""
