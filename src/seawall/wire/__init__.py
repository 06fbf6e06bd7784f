"""Sans-IO codecs: bytes in, events out, and back. Nothing here touches a socket, a file or a clock."""
