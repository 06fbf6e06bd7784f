"""Routers: copy what is appended to one topic to another one.

Reading order: `copies`, `routing`, `forwarder`.
"""
