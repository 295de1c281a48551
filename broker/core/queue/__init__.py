"""Queues: levels of messages, rules, limits, expiry, consumers and what they have unacked."""
