"""The parts of the public API that every kind of log shares: published and received records, topic settings,
transactions.

Embedded and remote logs, for threads and for asyncio, use the same classes. Nothing here does I/O.
"""
