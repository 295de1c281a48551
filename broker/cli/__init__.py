"""The command `slotmq`: serve, and look at what runs."""
