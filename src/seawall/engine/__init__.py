"""The log engine: storage, ordering and topics put together as one log that programs append to and read from."""
