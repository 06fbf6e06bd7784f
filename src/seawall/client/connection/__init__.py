"""Connections to a server, the requests sent over them, retries, and publisher sessions."""
