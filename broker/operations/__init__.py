"""The operations of an operator: one table of them, and one row per object, for the control socket and HTTP."""
