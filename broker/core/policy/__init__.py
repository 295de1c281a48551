"""Policies: their definitions, which of them applies, and the sweep that applies a change."""
