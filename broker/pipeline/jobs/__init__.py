"""The jobs: each a `slotmq pipeline` command and a call from Python."""
