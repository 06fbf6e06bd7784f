"""The embedded log as programs see it: `seawall.open`, publishers, subscribers, transactions, read-only views."""
