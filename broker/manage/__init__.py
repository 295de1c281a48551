"""The HTTP API of a running broker for operators, monitoring systems, the web page and remote readers of slots."""
