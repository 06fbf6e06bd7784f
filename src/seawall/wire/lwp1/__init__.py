"""Version 1 of the protocol: frames and payloads."""
