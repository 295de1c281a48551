"""`slotmq doctor`: checks the machine, the settings and the running broker, and advises what to change."""
