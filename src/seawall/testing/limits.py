"""Limits of the simulators and of their histories, each with its reason."""

from __future__ import annotations

from seawall.limits import KIB

#: Events a simulator keeps for `history()`: enough for a failing test, too few to fill the memory during a sweep.
SIM_HISTORY_EVENTS_MAX = 20_000

#: Events of one ordering history, which keeps them all until it is checked: about a gigabyte of memory.
ORDER_HISTORY_EVENTS_MAX = 5_000_000

#: Unsynced versions of one sector that a simulated crash may choose from, besides the synced one.
SIM_SECTOR_VERSIONS_MAX = 8

#: Bytes of a simulated stream in one direction, in flight and unread together, before `send` accepts no more.
SIM_STREAM_BUFFER_SIZE = 64 * KIB

#: Messages in flight on one simulated link; further ones are dropped, as by a full queue in a switch.
SIM_LINK_MESSAGES_MAX = 1_024
