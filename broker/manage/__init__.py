"""The HTTP API: what an operator, a monitoring system, the web page and remote readers ask a running broker."""
