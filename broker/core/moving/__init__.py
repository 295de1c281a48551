"""Moving messages between queues on an operator's order."""
