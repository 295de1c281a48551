"""The vhosts of the broker: open, add and delete them, and take damaged ones offline."""
