"""Policies: definitions, which one applies, and the sweep that applies a change."""
