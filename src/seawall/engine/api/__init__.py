"""The public API of the embedded log: `seawall.open`, publishers, subscribers, transactions, read-only views."""
