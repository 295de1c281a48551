"""Metrics for Prometheus, under the names that RabbitMQ uses and under names of SlotMQ."""
