"""Counters of what was published, delivered and acknowledged; they only grow."""
