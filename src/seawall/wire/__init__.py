"""Sans-IO codecs of the wire protocol: bytes to frames and messages, and back. No socket, no file, no clock."""
