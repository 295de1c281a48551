"""Carry the flights of 2013 from a tap into a lake, ask it, and check every answer against the data frame."""
