"""Changes of vhosts, users, permissions, policies and definitions while the broker runs, and their storage."""
