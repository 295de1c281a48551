"""Looks at the machine, the settings and the running broker, and says what to change."""
