"""Connections with a server, requests over them, retries, sessions."""
