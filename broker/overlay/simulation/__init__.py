"""A simulated network of the real overlay brokers in one process, with its own clock and faults."""
