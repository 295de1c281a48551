"""Slots: contiguous ranges of one queue's message ids, which a slot manager leases to workers."""
