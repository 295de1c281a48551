"""Delivery: workers that lease slots, the flusher, the committer, paging and timers. asyncio begins here."""
