"""Delayed messages: queues that hold messages until they are due."""
