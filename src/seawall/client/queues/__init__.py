"""Job queues over a network connection: `queues` for threads, `aio_queues` for asyncio."""
