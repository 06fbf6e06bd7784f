"""Programs that fork while they use a client: `python forking_clients.py <program> <url>`, one JSON value on stdout.

Each runs in a process of its own, so that pytest is not what forks.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable

import seawall
from seawall.client.remote_log import RemoteLog
from seawall.errors import SeawallError

WORKERS = 4
RECORDS = 300
#: How often the busy program forks its workers.
ROUNDS = 2


def child(work: Callable[[], object]) -> int:
    """Fork; the child runs `work`, and exits with 1 if it raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def exit_codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def refusal(call: Callable[[], object]) -> str:
    """The name of the error that a call raises."""
    try:
        call()
    except SeawallError as error:
        return type(error).__name__
    return "nothing"


async def async_refusal(call: Awaitable[object]) -> str:
    try:
        await call
    except SeawallError as error:
        return type(error).__name__
    return "nothing"


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def publish_some(log: RemoteLog, name: str) -> None:
    for number in range(RECORDS):
        log.publish("events", f"{name}-{number}".encode())


def preload(url: str) -> object:
    """Connect, publish, then fork workers that publish over the same log."""
    with seawall.connect(url) as log:
        log.publish("events", b"parent-0")
        pids = [child(lambda worker=worker: publish_some(log, str(worker))) for worker in range(WORKERS)]
        publish_some(log, "parent")
        return exit_codes(pids)


def busy(url: str) -> object:
    """Fork by multiprocessing while threads use the log and a publisher; the children use the log as well."""
    context = multiprocessing.get_context("fork")
    stop = threading.Event()
    counts = [0, 0]
    with seawall.connect(url) as log, log.publisher("events", linger_s=0.001) as publisher:

        def stream() -> None:
            while not stop.is_set():
                publisher.publish(f"stream-{counts[0]}".encode())
                counts[0] += 1
                if not counts[0] % 100:
                    publisher.flush()

        def publish_alone() -> None:
            while not stop.is_set():
                log.publish("events", f"wait-{counts[1]}".encode())
                counts[1] += 1
                log.topics()

        threads = [threading.Thread(target=stream), threading.Thread(target=publish_alone)]
        for thread in threads:
            thread.start()
        codes = []
        for round_number in range(ROUNDS):
            workers = [
                context.Process(target=publish_some, args=(log, f"{round_number}-{worker}"))
                for worker in range(WORKERS)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(60)
            codes += [worker.exitcode for worker in workers]
        stop.set()
        for thread in threads:
            thread.join()
    return {"codes": codes, "stream": counts[0], "wait": counts[1]}


def inherited(url: str) -> object:
    """Objects that existed before the fork refuse calls in the child, close quietly, and still work in the parent."""
    with seawall.connect(url) as log:
        transaction = log.transaction()
        published = transaction.publish("events", b"in-a-transaction")
        published.call.ranges()
        stager = log.stage()
        staged = stager.publish(b"staged")
        staged.ranges()
        publisher = log.publisher("events", linger_s=30)
        waiting = publisher.publish(b"in-flight")
        subscriber, positions = log.subscriber("events"), log.position_subscriber()
        following = iter(log.subscriber("events", "latest"))

        def use() -> None:
            wrong = "WrongStateError"
            expect(refusal(lambda: publisher.publish(b"from the child")), wrong)
            expect(refusal(lambda: publisher.publish([b"two", b"of them"])), wrong)
            expect(refusal(waiting.result), wrong)
            expect(refusal(publisher.flush), wrong)
            expect(refusal(subscriber.poll), wrong)
            expect(refusal(subscriber.commit), wrong)
            expect(refusal(positions.poll), wrong)
            expect(refusal(lambda: next(following)), wrong)
            expect(refusal(lambda: transaction.publish("events", b"more")), wrong)
            expect(refusal(transaction.commit), wrong)
            expect(refusal(transaction.abort), wrong)
            expect(refusal(lambda: stager.publish(b"more")), wrong)
            expect(refusal(stager.abort), wrong)
            for held in (publisher, transaction, stager):
                held.__exit__(None, None, None)
            # The log opens new connections and a new session.
            log.publish("events", b"child")
            with log.transaction() as own:
                own.publish("events", b"child in a transaction")
            log.close()

        codes = exit_codes([child(use), child(use)])
        # Nothing that the children did affected the parent's objects.
        transaction.commit()
        publisher.close()
        waiting.result()
        log.publish("events", b"parent")
        items = [*subscriber.poll(10), *subscriber.poll()]
        first = next(following)
        stager.abort()
        stager.close()
        return {"codes": codes, "items": len(items), "followed": len(first) > 0}


def on_event_loop(url: str, *, has_uvloop: bool) -> object:
    """The same on an event loop: objects from before the fork refuse in the child, which opens its own log."""

    async def own() -> None:
        async with seawall.connect_async(url) as log:
            await log.publish("events", b"child")

    async def use(log: object, publisher: object, subscriber: object, waiting: object) -> None:
        wrong = "WrongStateError"
        expect(await async_refusal(log.publish("events", b"from the child")), wrong)
        expect(await async_refusal(log.topics()), wrong)
        expect(await async_refusal(publisher.put(b"from the child")), wrong)
        expect(await async_refusal(waiting), wrong)
        expect(await async_refusal(subscriber.poll()), wrong)
        expect(await async_refusal(anext(aiter(log.subscriber("events")))), wrong)
        await publisher.close()
        await log.close()

    async def main() -> object:
        async with seawall.connect_async(url) as log:
            await log.publish("events", b"parent-0")
            publisher = await log.publisher("events", linger_s=30)
            waiting = publisher.publish(b"in-flight")
            subscriber = log.subscriber("events")
            await subscriber.poll()

            def in_child() -> None:
                run(use(log, publisher, subscriber, waiting))
                run(own())

            # On a thread, which has no running loop.
            codes = await asyncio.to_thread(lambda: exit_codes([child(in_child), child(in_child)]))
            await publisher.close()
            await waiting
            await log.publish("events", b"parent")
            return {"codes": codes, "items": len(await subscriber.poll(10)) > 0}

    def run(work: Awaitable[object]) -> object:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(work)

    make_loop = asyncio.new_event_loop
    if has_uvloop:
        import uvloop

        make_loop = uvloop.new_event_loop
    return run(main())


PROGRAMS: dict[str, Callable[[str], object]] = {
    "preload": preload,
    "busy": busy,
    "inherited": inherited,
    "asyncio": lambda url: on_event_loop(url, has_uvloop=False),
    "uvloop": lambda url: on_event_loop(url, has_uvloop=True),
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(PROGRAMS[sys.argv[1]](sys.argv[2])))
