"""What readers receive: fetch responses, files sent without a copy, rate limits."""
