"""The state of one data directory: the store, its topics, sessions and settings; how it is opened and replayed."""
