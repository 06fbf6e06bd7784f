"""Shared types and pure state machines: no operating system, no clock, no randomness, no threads.

The same state and input always give the same output. Callers pass in the time and random numbers.
"""
