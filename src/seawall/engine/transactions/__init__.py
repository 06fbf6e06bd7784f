"""Transactions: records are staged, then published all together by copying or by adopting whole segments.

Reading order: `staging`, `plan`, `transactions`, `compounds`, `copying`, `adoption`.
"""
