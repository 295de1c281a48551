"""Publish the flights of 2013 through a broker, kill it during the run, and prove that no flight was lost."""
