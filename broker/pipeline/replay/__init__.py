"""Republishing: its keys, its order and its progress."""
