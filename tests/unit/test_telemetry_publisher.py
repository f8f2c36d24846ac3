"""The feed's writing end, and that its readers may be older or newer."""

from __future__ import annotations

import dataclasses

from gt_runtime.protocol import codec
from gt_runtime.telemetry.publisher import HISTORY, Publisher
from gt_runtime.telemetry.records import EVENT, FRAME, Event, Frame, SessionRecord, WorkerRecord


def test_one_numbering_for_frames_and_events() -> None:
    sent: list[list[bytes]] = []
    publisher = Publisher(sent.append)
    frame = Frame(
        0, 0.0, "lab", 3, workers=[WorkerRecord("w0", queue=4)], sessions=[SessionRecord("s1", workers=["w0"])]
    )
    publisher.frame(frame, 10.0)
    publisher.event(Event("joined", subject="w0"), 11.0)
    publisher.frame(frame, 12.0)
    assert [topic for topic, _ in sent] == [FRAME, EVENT, FRAME]
    assert [codec.unpack(body)["seq"] for _, body in sent] == [1, 2, 3]
    assert [codec.unpack(body)["time"] for _, body in sent] == [10.0, 11.0, 12.0]
    assert Frame.unpack(codec.unpack(sent[2][1])) == dataclasses.replace(frame, seq=3, time=12.0)


def test_snapshot_has_the_newest_frame_and_the_last_events() -> None:
    publisher = Publisher(lambda frames: None)
    assert publisher.snapshot() == {"frame": None, "events": []}
    for number in range(HISTORY + 5):
        publisher.event(Event("joined", text=str(number)), float(number))
    publisher.frame(Frame(0, 0.0, "lab", 1), 1.0)
    snapshot = publisher.snapshot()
    assert snapshot["frame"]["seq"] == HISTORY + 6
    assert [e["text"] for e in snapshot["events"]] == [str(n) for n in range(5, HISTORY + 5)]


def test_readers_skip_what_they_do_not_know() -> None:
    packed = Frame(1, 0.0, "lab", 1, workers=[WorkerRecord("w0")]).pack()
    packed["later"] = 1
    packed["workers"][0]["later"] = 2
    del packed["revision_note"], packed["workers"][0]["queue"]
    frame = Frame.unpack(packed)
    assert frame.revision_note == "" and frame.workers[0].queue is None
