"""Slot files and the log of seals: what a tap has written, on disk."""
