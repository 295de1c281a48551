"""The jobs: each is a `slotmq pipeline` command and a function for Python."""
