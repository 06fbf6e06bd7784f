"""Publishing over the network: a state machine without I/O (`outgoing`), and senders for threads and for asyncio."""
