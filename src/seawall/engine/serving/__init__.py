"""What a server needs from an engine, on its event loops."""
