"""`seawall worker`: worker processes for a queue of tasks, and the process that supervises them."""
