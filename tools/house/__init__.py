"""Measures of the source: the length of the broker's four paths, and writes to fields of other objects."""
