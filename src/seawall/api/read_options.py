"""Where readers start, and which records they see."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

#: Where a reader of one topic starts: its beginning, its end, what the owner has committed, a seq, or a time.
Start: TypeAlias = Literal["earliest", "latest", "committed"] | int | datetime
#: Where a reader of all topics starts: the beginning, the end, or a position.
PositionStart: TypeAlias = Literal["earliest", "latest"] | int
#: Which records a reader sees: those that are durable as their topic promises, or all that are ordered.
ReadMode: TypeAlias = Literal["durable", "ordered"]
