"""One client adapter for each system, with the same small interface."""
