"""One connection: accepting it, receiving and sending, its memory, and access control."""
