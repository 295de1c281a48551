"""The store: one log per vhost, and what is derived from it."""
