"""Job queues for every kind of log: the API for threads and for asyncio, and what both decide."""
