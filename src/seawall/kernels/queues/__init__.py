"""Job queues: which jobs of a topic are ready, leased or delayed."""
