"""Shared memory between workers and trainer: filled, emptied, used again, and never waited for."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from streamshard.dataset import slots as module
from streamshard.dataset.slots import Slots, slots_for, take_from
from streamshard.errors import StateError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name"),
]


def test_values_come_out_as_they_went_in_and_free_the_slot() -> None:
    slots = Slots(2, 2, 100)
    for worker in range(2):
        writer = slots.writer(worker)
        for turn in range(5):
            values = [b"", bytes([worker, turn]) * 10, b"x"]
            place = writer.write(values)
            assert place is not None
            assert place[1] // 2 == worker
            assert take_from(*place, [0, 20, 1]) == values


def test_no_free_slot_and_no_room_are_said_at_once() -> None:
    slots = Slots(1, 2, 4096)
    writer = slots.writer(0)
    places = [writer.write([b"a"]), writer.write([b"b"])]
    assert None not in places
    assert writer.write([b"c"]) is None
    assert take_from(*places[1], [1]) == [b"b"]
    again = writer.write([b"c"])
    assert again == places[1]
    assert take_from(*again, [1]) == [b"c"]
    assert writer.write([bytes(4096), b"1"]) is None
    assert writer.write([bytes(4096)]) is not None


def test_the_last_values_can_be_had_as_bytearrays() -> None:
    slots = Slots(1, 1, 100)
    place = slots.writer(0).write([b"ab", memoryview(b"cde"), b"f"])
    assert place is not None
    found = take_from(*place, [2, 3, 1], 2)
    assert found == [b"ab", b"cde", b"f"]
    assert [type(each) for each in found] == [bytes, bytearray, bytearray]


def _fill(slots: Slots, sender: Any) -> None:
    sender.send(slots.writer(1).write([b"from", b"afar"]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_started_process_writes_into_the_same_memory(method: str) -> None:
    context = multiprocessing.get_context(method)
    slots = Slots(2, 1, 64)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_fill, args=(slots, sender))
    process.start()
    place = receiver.recv()
    process.join()
    assert take_from(*place, [4, 4]) == [b"from", b"afar"]


def test_slots_leave_no_descriptor_and_no_file_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        slots = Slots(1, 1, 1 << 20)
        slots.writer(0).write([b"1"])
    key = slots.key
    assert Path(f"/proc/self/fd/{slots._file}").readlink().name.startswith("memfd:")  # in no directory
    del slots
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(StateError, match="had gone"):
        take_from(key, 0, [1])


def test_they_are_handed_over_to_started_processes_only() -> None:
    with pytest.raises(TypeError, match="where they are started"):
        pickle.dumps(Slots(1, 1, 1))


def test_a_system_without_such_memory_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_name: str) -> int:
        raise OSError(38, "Function not implemented")

    caplog.set_level("INFO", module.logger.name)
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert slots_for(1, 1, 1) is None
    assert "not implemented" in caplog.text
    monkeypatch.delattr(os, "memfd_create")
    assert slots_for(1, 1, 1) is None
