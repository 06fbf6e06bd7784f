"""The short form of `make chaos`: a few rounds, the ends of a node, a full disk, and bytes that nobody should send."""

import asyncio
import os
import random
import signal
import struct
import subprocess
import zlib
from contextlib import contextmanager
from itertools import count

import pytest
from chaos_node import ChaosNode, make_topics
from chaos_round import Round
from fuzz_mutation import mutate
from lwp2_peer import Peer
from v1_clients import BATCH, CONTROL, PythonClient, frame, record

import seawall
from seawall.core.types import ClientId, TopicId
from seawall.engine.open_log import open_log
from seawall.errors import SeawallError
from seawall.storage.inspect import describe_wal
from seawall.wire.codes import HelloFlags, ReadBy
from seawall.wire.lwp2 import encode_control, encode_ping
from seawall.wire.lwp2_reading import Bounds, Commit, Fetch
from seawall.wire.lwp2_session import Hello
from seawall.wire.lwp2_subscriptions import Credit, Subscribe

MIB = 1 << 20

#: Bytes of bad input; the long form sends ten times as many.
BAD_BYTES = int(os.environ.get("CHAOS_BAD_BYTES", MIB))


@contextmanager
def node(folder, *arguments):
    make_topics(folder / "data")
    with ChaosNode(folder / "data", *arguments) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 6])
def test_a_round_breaks_no_promise(tmp_path, seed):
    outcome = Round(seed, tmp_path, 6).run()
    assert not outcome.complaints, str(outcome)
    assert outcome.acked > 100, str(outcome)
