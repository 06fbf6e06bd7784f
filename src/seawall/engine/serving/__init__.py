"""The log as a server uses it, on one or several event loops."""
