"""Archive the flights of 2013 from a tap into a lake, query it, and check every answer against the data frame."""
