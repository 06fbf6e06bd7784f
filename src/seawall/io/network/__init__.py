"""Sockets, TLS, event loops, readiness."""
