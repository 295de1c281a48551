"""The publish path into queues: resolved routes, posting, dead letters, direct replies and producer sequences."""
