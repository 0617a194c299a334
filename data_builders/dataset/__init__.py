"""The files of a built dataset."""
