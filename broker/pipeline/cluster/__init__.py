"""A standalone Spark master and workers of this machine."""
