"""Queues: levels of messages, rules, limits, expiry, consumers and their unacked messages."""
