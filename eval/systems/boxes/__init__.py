"""Boxes: entity tracking through operations (Kim & Schuster, ACL 2023)."""
