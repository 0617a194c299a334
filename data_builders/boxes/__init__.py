"""The Boxes task (Kim & Schuster, ACL 2023): its world, its wordings, its splits and its file format."""
