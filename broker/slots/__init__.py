"""Slots: contiguous ranges of one queue's message ids, leased by a slot manager."""
