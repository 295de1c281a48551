"""The ports between the overlay and one vhost: its streams, what it receives, and what its bindings want."""
