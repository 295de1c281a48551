"""The vhosts of the broker: open, added, deleted, offline."""
