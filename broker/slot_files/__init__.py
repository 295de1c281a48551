"""Slot files and the seal log: the messages of taps on disk."""
