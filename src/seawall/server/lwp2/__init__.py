"""Version 2 of the protocol on a connection, and the commands that both versions share."""
