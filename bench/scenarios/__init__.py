"""What is measured: one module for each kind of load, one table that lists all rows."""
