"""One client for each system with job queues, with the same small interface."""
