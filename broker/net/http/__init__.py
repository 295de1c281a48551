"""The broker's HTTP server: slots, cursors and snapshots for remote readers, and what a supervisor asks."""
