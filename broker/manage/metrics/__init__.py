"""Metrics for Prometheus, read at each scrape, under RabbitMQ's names and under SlotMQ's own."""
