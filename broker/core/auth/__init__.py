"""Users, and their passwords, permissions and limits."""
