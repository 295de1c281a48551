"""Measures the topic index: every engine by itself, and through the broker."""
