"""The report on a lake: its figures, counted by Spark, and its page."""
