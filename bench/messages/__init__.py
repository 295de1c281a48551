"""The scenarios: one module for each kind of load, and one table that lists all rows."""
