"""What was published, delivered and acknowledged: numbers that only grow."""
