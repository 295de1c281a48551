"""Simulate overlays of many sizes with the shipped brokers, one in each Spark task."""
