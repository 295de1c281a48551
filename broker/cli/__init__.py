"""The command `slotmq`: runs the broker, and commands for a running one."""
