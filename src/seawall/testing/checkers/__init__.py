"""Recorded histories of a pod, and the checkers of its ordering guarantees."""
