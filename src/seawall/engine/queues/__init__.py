"""Job queues: what is ready, who holds which job, and what becomes of jobs that nobody finishes."""
