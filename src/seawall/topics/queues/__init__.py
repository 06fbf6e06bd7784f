"""The state of job queues."""
