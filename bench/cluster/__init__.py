"""Measures a cluster beside a single broker."""
