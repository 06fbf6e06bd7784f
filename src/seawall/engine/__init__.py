"""The roles put together: storage, ordering and topics as one log, under a scheduler."""
