"""Version 2 of the protocol: frames and payloads."""
