"""Growth: whether the cost of a message stays flat, and whether everybody gets a share."""
