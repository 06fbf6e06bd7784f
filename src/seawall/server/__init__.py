"""The network server of a log: connections, both protocol versions, and the life cycle of a node."""
