"""Attacks on what the project promises: `make attack` runs them all, and their short form is among the tests.

frame.py   what an attack is, how many times it is tried, and the table of what came of it
others     the attacks: every module here with an `ATTACKS` is found
"""
