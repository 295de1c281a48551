"""What is published again, and as what."""
