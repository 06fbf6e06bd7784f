"""The state of one data directory: the store, its topics, sessions and settings, and how it is opened and replayed.

Reading order: `store`, `parts`, `opening`, `replay`, `topic_logs`, `topic_log`, `control_log`.
"""
