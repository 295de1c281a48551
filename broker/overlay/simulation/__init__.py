"""A network of the shipped overlay brokers in one process, with a clock and faults of its own."""
