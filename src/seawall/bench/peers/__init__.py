"""Seawall measured beside the systems that users would pick instead: servers, clients and shapes of load."""
