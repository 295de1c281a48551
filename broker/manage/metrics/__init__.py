"""Metrics for Prometheus: read when they are asked for, in RabbitMQ's names, and in names of the broker's own."""
