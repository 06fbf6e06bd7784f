"""Who assigns positions: the local orderer of one process, or brokers and a sequencer over shared memory."""
