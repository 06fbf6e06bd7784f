"""Job queues: the same servers as for topics, with other clients.

All of them store a job, and take it off again, on stable storage before they answer.
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from seawall.bench.peers.jobs.base import THREADS
from seawall.bench.peers.system import HOW_TO_GET
from seawall.bench.peers.systems.redis import Redis
from seawall.bench.peers.systems.seawall import Seawall


class SeawallQueue(Seawall):
    """`log.queue`, without `seawall.tasks`."""

    key = "seawall-queue"

    def settings(self) -> str:
        """How the queue is used."""
        return f"queues: class fsync, push(); {THREADS} threads of one log, claim(1), ack()"


class SeawallTasks(Seawall):
    """`seawall.tasks`."""

    key = "seawall-tasks"

    def settings(self) -> str:
        """What differs from the defaults."""
        return f"jobs: a TaskQueue with its defaults (class fsync), send(); one worker process with {THREADS} threads"


class RedisJobs(Redis):
    """A Redis server that syncs before each answer, used by a library, or as its users do without one."""

    def __init__(self, key: str, name: str, text: str, package: str = "") -> None:
        """`package` is that of the library; "" without one."""
        self.key = key
        self.name = name
        self._text = text
        self._package = package

    def missing(self, programs: Path) -> str | None:
        """The server, its client or the library."""
        if (reason := super().missing(programs)) is not None:
            return reason
        if self._package and find_spec(self._package) is None:
            return f"the Python package {self._package} is not installed; {HOW_TO_GET}"
        return None

    def version(self, programs: Path) -> str:
        """The versions of the library, server and client."""
        version = super().version(programs)
        return f"{self._package} {metadata.version(self._package)}, {version}" if self._package else version

    def settings(self) -> str:
        """The options that are set."""
        return f"appendonly yes, appendfsync always, no snapshots; {self._text}"


REDIS_QUEUES: Final = (
    RedisJobs(
        "redis-groups",
        "Redis groups",
        f"a stream with a consumer group; XADD; {THREADS} threads with a connection each, XREADGROUP COUNT 1, XACK and "
        "XDEL in one pipeline",
    ),
    RedisJobs(
        "redis-lists",
        "Redis lists",
        f"a list; LPUSH; {THREADS} threads with a connection each, BLMOVE (which has replaced BRPOPLPUSH), LREM",
    ),
)
_RQ: Final = "enqueue(); default settings, results always kept for 500 s, pickled jobs; one worker process"
_DRAMATIQ: Final = "send(); default settings; results: the middleware Results with RedisBackend, store_results"
_CELERY: Final = (
    "delay(); default settings (prefetch 4 a worker thread or process) but acks_late, so that a killed worker loses no "
    "job; results: the Redis backend, otherwise none"
)
JOB_LIBRARIES: Final = (
    RedisJobs("rq", "RQ", f"{_RQ}, Worker, which forks for each job", "rq"),
    RedisJobs("rq-simple", "RQ simple", f"{_RQ}, SimpleWorker, which does not fork", "rq"),
    RedisJobs("dramatiq", "Dramatiq", f"{_DRAMATIQ}; one worker process with {THREADS} threads", "dramatiq"),
    RedisJobs("celery", "Celery", f"{_CELERY}; one worker with the default pool, {THREADS} processes", "celery"),
    RedisJobs("celery-threads", "Celery threads", f"{_CELERY}; one worker with {THREADS} threads", "celery"),
)
