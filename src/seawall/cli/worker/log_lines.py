"""Log lines of workers on standard error: text for people, or JSON objects for programs.

    2026-05-01 12:00:00,123 INFO    worker 1: send_mail, job 17, delivery 1: done in 12.3 ms
    {"time":"2026-05-01T12:00:00.123+00:00","level":"INFO","logger":"seawall.tasks","worker":1,"message":"…",
     "task":"send_mail","seq":17,"delivery":1,"outcome":"done","duration_ms":12.3}

Worker 0 is the supervisor. A traceback follows its line, or is the member `traceback`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

#: The attributes of the lines of jobs.
_ATTRIBUTES = ("task", "seq", "delivery", "outcome", "duration_ms")


class JsonLines(logging.Formatter):
    """A log record as one JSON object."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Encode a record."""
        moment = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "worker": self._worker,
            "message": record.getMessage(),
        }
        document |= {name: getattr(record, name) for name in _ATTRIBUTES if hasattr(record, name)}
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False, default=str, separators=(",", ":"))


def configure_logging(worker: int, level: str, *, as_json: bool) -> None:
    """Write all log records of this process to standard error."""
    handler = logging.StreamHandler()
    text = logging.Formatter(f"%(asctime)s %(levelname)-7s worker {worker}: %(message)s")
    handler.setFormatter(JsonLines(worker) if as_json else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
