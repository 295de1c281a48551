"""Measures of the source: the length of the broker's four paths, and the dependencies of its packages."""
