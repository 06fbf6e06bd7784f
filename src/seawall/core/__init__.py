"""Vocabulary and pure state machines: no operating system, no time, no randomness, no threads.

Same state and same input give the same output. Whoever needs the time or a random number passes it in.
"""
