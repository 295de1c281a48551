"""The store: one log per vhost, and the files derived from it."""
