"""The report of a lake: its figures, which Spark counts, and its page."""
