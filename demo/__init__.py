"""Publish the flights of 2013 through a broker, kill it on the way, and prove that not one was lost."""
