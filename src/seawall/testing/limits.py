"""Every bound of the simulators and of the histories they leave, each with its reason."""

from __future__ import annotations

from seawall.limits import KIB

#: Events a simulator remembers for `history()`: enough for a failing test, not enough to fill the memory of a sweep.
SIM_HISTORY_EVENTS_MAX = 20_000

#: Events of one ordering history, none of which may be forgotten before it is checked: about a gigabyte of memory.
ORDER_HISTORY_EVENTS_MAX = 5_000_000

#: Versions of one unsynced sector that a simulated crash may choose from, beside the synced one.
SIM_SECTOR_VERSIONS_MAX = 8

#: Bytes a simulated stream holds in one direction, in flight and unread together, before `send` takes no more.
SIM_STREAM_BUFFER_SIZE = 64 * KIB

#: Messages in flight on one simulated link; what comes on top is dropped, as a full queue in a switch would.
SIM_LINK_MESSAGES_MAX = 1_024
