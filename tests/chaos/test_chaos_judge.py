"""The checker of histories finds every fault that is planted in a valid one."""

import copy

import pytest
from chaos_history import History, Read, ReadItem, Written, judge, mark_of, value_of


def valid() -> History:
    marks = [mark_of(value_of("a", 0, number)) for number in range(4)]
    tries = [mark_of(value_of("b", connection, number)) for connection, number in ((1, 0), (1, 1), (2, 1), (2, 2))]
    stored = [marks[0], tries[0], marks[1], tries[1], tries[2], marks[2], tries[3], marks[3]]
    items = [ReadItem(seq, mark) for seq, mark in enumerate(stored[:4], 1)]
    items.append(ReadItem(5, None, 9))
    items += [ReadItem(seq, mark) for seq, mark in enumerate(stored[4:], 10)]
    acked = {item.mark: item.seq for item in items if item.mark in marks}
    return History(
        [
            Written("a", "t", offered=marks, acked=acked),
            Written("b", "t", is_once=False, offered=tries, acked={tries[0]: 0, tries[2]: 0}),
        ],
        [
            Read("r", "t", copy.deepcopy(items)),
            Read("old", "t", [ReadItem(0, mark) for mark in stored], has_seqs=False),
            Read("early", "t", copy.deepcopy(items[:3]), is_whole=False),
        ],
        {"t": items},
    )


def test_a_valid_history_has_no_complaint():
    assert judge(valid()) == []


def lose(history):
    for items in (history.final["t"], history.read[0].items):
        items[6] = ReadItem(11, None, 11)


def double(history):
    for items in (history.final["t"], history.read[0].items):
        items.append(ReadItem(14, items[0].mark))


def swap(history):
    for items in (history.final["t"], history.read[0].items):
        items[0].mark, items[2].mark = items[2].mark, items[0].mark


def swap_on_a_connection(history):
    for items in (history.final["t"], history.read[0].items):
        items[1].mark, items[3].mark = items[3].mark, items[1].mark


def hide_a_gap(history):
    del history.read[0].items[4]


def move(history):
    history.written[0].acked[history.written[0].offered[0]] = 3


def fail(history):
    history.written[0].failures.append("no server")


def make_up(history):
    history.final["t"].append(ReadItem(14, b"a 0 99"))


def read_twice(history):
    history.read[0].items.insert(1, copy.copy(history.read[0].items[0]))


def end_early(history):
    del history.read[1].items[-1]


def read_more(history):
    history.read[1].items.append(ReadItem(0, b"a 0 3"))


def drop_what_was_not_acked(history):
    mark = history.final["t"][-1].mark
    history.final["t"].pop()
    history.read[0].items.pop()
    history.read[1].items.pop()
    del history.written[0].acked[mark]


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (lose, "lost"),
        (double, "stored 2 times"),
        (swap, "is after"),
        (swap_on_a_connection, "is after"),
        (hide_a_gap, "no gap was reported"),
        (move, "was acked as seq 3 and is at 1"),
        (fail, "a publish failed: no server"),
        (make_up, "was never sent"),
        (read_twice, "it read is"),
        (end_early, "of 8"),
        (read_more, "stored are 8"),
        (drop_what_was_not_acked, "published and is not there"),
    ],
)
def test_a_planted_fault_is_found(plant, complaint):
    history = valid()
    plant(history)
    assert any(complaint in problem for problem in judge(history)), judge(history)


def test_an_allowed_refusal_is_no_complaint():
    history = valid()
    fail(history)
    history.written[0].may_fail = True
    assert judge(history) == []
