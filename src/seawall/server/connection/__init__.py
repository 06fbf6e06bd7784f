"""One connection: accepting it, receiving and sending, its memory, who may do what."""
