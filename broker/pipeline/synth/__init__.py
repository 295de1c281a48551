"""Traffic like that of a lake."""
