"""Fetch responses for readers: files sent without a copy, and read rate limits."""
