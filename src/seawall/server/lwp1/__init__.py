"""Version 1 of the protocol on a connection."""
