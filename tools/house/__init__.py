"""Measures of the source: how long the broker's four paths are, and what its packages owe each other."""
