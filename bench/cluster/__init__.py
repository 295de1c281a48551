"""Measures a cluster beside a single broker, and beside job queues that keep their jobs in PostgreSQL."""
