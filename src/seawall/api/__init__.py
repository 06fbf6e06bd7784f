"""What every kind of log shares: records as users publish and receive them, topic settings, transactions.

Embedded or remote, for threads or for asyncio: the same classes. Nothing here does I/O.
"""
