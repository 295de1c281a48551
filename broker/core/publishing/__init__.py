"""Messages on their way into queues: resolved routes, posting, dead letters, direct replies, producer sequences."""
