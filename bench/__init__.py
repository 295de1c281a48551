"""Benchmarks: measure any AMQP 0-9-1 broker from outside, as messages per CPU-second of the broker."""
