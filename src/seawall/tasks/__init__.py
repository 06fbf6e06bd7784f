"""Background tasks on a job queue: functions that are sent as jobs and executed by workers.

    from seawall.tasks import TaskQueue

    tasks = TaskQueue("seawall://127.0.0.1:1992", topic="mails")

    @tasks.task(retries=5, time_limit_s=60)
    def send_mail(to: str) -> None: ...

    send_mail.send("ada")                       # a worker executes it: seawall worker mails:tasks

`task_queue` has tasks and schedules, `job_format` the bytes of a job, `worker` and `executor` what happens to it,
`results` what it returns, `middleware` what runs around it. This package uses a log as any program does, and must not
know where it is.
"""

from seawall.api.queues.jobs import Backoff
from seawall.tasks.interrupts import TaskInterrupt, TimeLimitError, WorkerStoppedError
from seawall.tasks.job_format import Codec, JsonCodec, MsgpackCodec, TaskCall
from seawall.tasks.middleware import JobLog, Middleware
from seawall.tasks.results import Results, SentJob
from seawall.tasks.running_job import Outcome, RunningJob, current_job
from seawall.tasks.task import Task
from seawall.tasks.task_queue import TaskQueue
from seawall.tasks.worker import Worker

__all__ = [
    "Backoff",
    "Codec",
    "JobLog",
    "JsonCodec",
    "Middleware",
    "MsgpackCodec",
    "Outcome",
    "Results",
    "RunningJob",
    "SentJob",
    "Task",
    "TaskCall",
    "TaskInterrupt",
    "TaskQueue",
    "TimeLimitError",
    "Worker",
    "WorkerStoppedError",
    "current_job",
]
