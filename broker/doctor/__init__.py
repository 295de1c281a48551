"""`slotmq doctor`: check the machine, the settings and the running broker, and advise what to change."""
