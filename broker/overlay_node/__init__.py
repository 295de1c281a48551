"""The overlay in the daemon: it connects the logical brokers of this process to its vhosts, clock and links."""
