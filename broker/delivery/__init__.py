"""Delivery: workers that lease slots, the flusher, the committer, paging and timers (floor 4; asyncio begins here)."""
