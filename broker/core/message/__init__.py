"""A message in memory: its envelope, its fields, its history of dead-lettering."""
