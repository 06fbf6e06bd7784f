"""Control batches: every change of state that is not an append, as bytes."""
