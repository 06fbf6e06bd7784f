"""Reading over the network: fetches with prefetch, subscriptions, and reading by position."""
