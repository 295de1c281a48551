"""Growth: measures whether the cost of a message stays flat, and whether every client gets a share."""
