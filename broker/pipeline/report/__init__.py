"""The report of a lake: its figures, which Spark counts, and the page that shows them."""
