"""Benchmarks: any AMQP 0-9-1 broker measured from outside, as messages per broker CPU-second."""
