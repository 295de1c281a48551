"""Slots: contiguous ranges of one queue's message ids, handed out by a slot manager."""
