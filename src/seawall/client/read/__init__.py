"""Reading over the network: fetch with prefetch, subscriptions, reading by position."""
