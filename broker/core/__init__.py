"""Broker logic: exchanges, queues, consumers, sessions. Synchronous; never reads a file, never imports asyncio."""
