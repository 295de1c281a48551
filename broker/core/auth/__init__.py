"""Users, passwords, permissions and limits of users."""
