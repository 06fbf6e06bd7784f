"""Where readers start."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

#: Of one topic: the beginning, the end, what the owner has committed, a seq, or a time.
Start: TypeAlias = Literal["earliest", "latest", "committed"] | int | datetime
#: Of all topics: the beginning, the end, or a position.
PositionStart: TypeAlias = Literal["earliest", "latest"] | int
