"""Histories of a pod and the checks that judge them."""
