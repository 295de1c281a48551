"""The overlay in the daemon: drives the logical brokers of this process with its vhosts, its clock and its links."""
