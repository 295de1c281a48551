"""The command `slotmq`: run the broker, or send commands to a running one."""
