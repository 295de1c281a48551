"""What an operator asks of a broker: one table of operations, and one row per object, for the socket and HTTP."""
