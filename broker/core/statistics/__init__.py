"""Counters of publishes, deliveries and acknowledgements, which never decrease."""
