"""The API under /v1: slots, cursors and snapshots for remote readers."""
