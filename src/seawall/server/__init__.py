"""The network around an engine: connections, both protocol versions, and the life of a node."""
