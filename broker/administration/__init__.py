"""Administration: vhosts, users, rights, policies and definitions, changed and stored while the broker runs."""
