"""Publishing by the broker itself: posting to queues, dead letters, direct replies, producer sequences."""
