"""Publishing over the network: one state machine without I/O, and its senders for threads and for asyncio."""
