"""Finding clusters: order of the ways, stale files, names, safety of the directory. Starts no process."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.launch import connection, parent
from gt_runtime.launch.connection import Connection, Reservation, RuntimeDirectory, find
from gt_runtime.launch.errors import AmbiguousCluster, LaunchError, NameTaken, NoCluster, UnsafeDirectory
from gt_runtime.protocol.handshake import host_id


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeDirectory]:
    for name in ("GT_ADDRESS", "GT_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GT_RUNTIME_DIR", str(tmp_path / "gt"))
    yield RuntimeDirectory.open()


def running(name: str, **more: object) -> Connection:
    """A connection whose launcher is this very process."""
    fields = Connection(
        endpoints={"front": f"ipc:///{name}/front.sock"},
        name=name,
        pid=os.getpid(),
        pid_started=parent.start_time(os.getpid()) or 0,
        uid=os.getuid(),
        host=socket.gethostname(),
        host_id=host_id(),
        started=time.time(),
    )
    return dataclasses.replace(fields, **more)  # type: ignore[arg-type]  # tests name the fields


def dead(name: str, **more: object) -> Connection:
    """One whose launcher's number has passed to another process (this one)."""
    return running(name, pid_started=1, **more)


def test_a_connection_file_is_private_and_comes_back(home: RuntimeDirectory) -> None:
    said = running("one", embedded=False, version="0.1.0", log_dir="/logs")
    home.write(said)
    assert stat.S_IMODE(home.file("one").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert find("one") == said
    assert [p.name for p in home.clusters.iterdir()] == ["one.json"], "no temporary file stays"


def test_order_of_the_ways(home: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write(running("one"))
    assert find().name == "one"
    home.write(running("two"))
    monkeypatch.setenv("GT_CLUSTER", "two")
    assert find().name == "two"
    monkeypatch.setenv("GT_ADDRESS", "tcp://127.0.0.1:7")
    assert find() == Connection(endpoints={"front": "tcp://127.0.0.1:7"})
    assert find("one").name == "one", "what is said beats the environment"
    assert find(address="ipc:///x").front == "ipc:///x"


def test_several_are_listed(home: RuntimeDirectory) -> None:
    home.write(running("one", started=2.0))
    home.write(running("two", started=1.0))
    with pytest.raises(AmbiguousCluster) as caught:
        find()
    assert caught.value.names == ("two", "one")
    assert "two, one" in str(caught.value) and "--name" in str(caught.value)


def test_none(home: RuntimeDirectory) -> None:
    with pytest.raises(NoCluster, match="gt up"):
        find()
    home.write(running("one"))
    with pytest.raises(NoCluster, match="these are running: one"):
        find("two")


def test_an_embedded_cluster_is_only_found_by_those_who_ask(home: RuntimeDirectory) -> None:
    home.write(running("embedded-1", embedded=True))
    with pytest.raises(NoCluster):
        find()
    assert find(embedded=True).name == "embedded-1"
    assert find("embedded-1").embedded
    home.write(running("one"))
    assert find(embedded=True).name == "one"


def test_name_and_address_together_make_no_sense(home: RuntimeDirectory) -> None:
    with pytest.raises(LaunchError, match="give one of them"):
        find("one", "tcp://127.0.0.1:7")


@pytest.mark.parametrize("address", ["127.0.0.1:7", "tcp://host", "http://host:7", "ipc://", "tcp://:x"])
def test_an_address_is_an_endpoint(home: RuntimeDirectory, address: str) -> None:
    with pytest.raises(LaunchError, match="ipc://PATH or tcp://HOST:PORT"):
        find(address=address)


def test_stale_files_are_ignored_and_removed(home: RuntimeDirectory) -> None:
    home.write(dead("reused"))
    home.write(running("gone", pid=2**22 + 1))  # above the kernel's largest pid
    home.run_dir("reused").mkdir(parents=True)
    home.write(running("one"))
    assert find().name == "one"
    assert sorted(p.name for p in home.clusters.iterdir()) == ["one.json"]
    assert not home.run_dir("reused").exists()


def test_a_file_from_before_the_last_boot_is_stale(home: RuntimeDirectory) -> None:
    home.write(running("old", host_id="00000000-0000-0000-0000-000000000000pid:[1]"))
    with pytest.raises(NoCluster):
        find("old")
    assert not home.file("old").exists()


def test_a_cluster_of_another_host_is_found_by_name_only(home: RuntimeDirectory) -> None:
    home.write(running("far", host="elsewhere", host_id="1111pid:[1]", pid=1))
    with pytest.raises(NoCluster):
        find()
    assert find("far").host == "elsewhere"
    assert home.file("far").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"endpoints": {}}', '{"endpoints": {"front": 3}, "name": "bad"}', '{"name": "bad"}',
     '{"endpoints": {"front": "ipc:///x"}, "name": "other"}',
     '{"endpoints": {"front": "ipc:///x"}, "name": "bad", "pid": "1"}'],
)  # fmt: skip
def test_what_is_no_connection_file_is_passed_over(home: RuntimeDirectory, text: str) -> None:
    home.file("bad").write_text(text)
    home.write(running("one"))
    assert find().name == "one"


def test_a_newer_files_unknown_keys_are_ignored() -> None:
    text = json.dumps({**json.loads(running("one").to_json()), "colour": "red"})
    assert Connection.from_json(text).name == "one"


@given(st.builds(
    Connection,
    endpoints=st.dictionaries(st.text(), st.text(), max_size=3).map(lambda d: d | {"front": "ipc:///f"}),
    tcp=st.dictionaries(st.text(), st.text(), max_size=2),
    name=st.text(), pid=st.integers(), pid_started=st.integers(), uid=st.integers(), host=st.text(), host_id=st.text(),
    started=st.floats(allow_nan=False, allow_infinity=False), version=st.text(), embedded=st.booleans(),
    log_dir=st.text(),
))  # fmt: skip
def test_json_round_trip(said: Connection) -> None:
    assert Connection.from_json(said.to_json()) == said


@pytest.mark.parametrize("name", ["", ".x", "../x", "a/b", "a b", "x" * 65, "é"])
def test_names_that_are_none(home: RuntimeDirectory, name: str) -> None:
    with pytest.raises(LaunchError, match="at most 64"):
        home.file(name)
    with pytest.raises(LaunchError):
        home.reserve(name)


def test_a_directory_others_may_enter_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "gt"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(UnsafeDirectory, match="mode 0755"):
        RuntimeDirectory.open(open_to_all)


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "gt").symlink_to(real)
    with pytest.raises(UnsafeDirectory, match="no directory"):
        RuntimeDirectory.open(tmp_path / "gt")


def test_another_users_directory_is_refused(home: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(UnsafeDirectory, match=f"belongs to uid {mine}"):
        RuntimeDirectory.open(home.root)


def test_a_socket_path_that_is_too_long_is_told(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    home = RuntimeDirectory.open(deep)
    with pytest.raises(LaunchError, match="GT_RUNTIME_DIR"):
        home.run_dir("one")


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GT_RUNTIME_DIR", "/x/y")
    assert connection.default_root() == Path("/x/y")
    monkeypatch.delenv("GT_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert connection.default_root() == tmp_path / "gt"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert connection.default_root() == Path(f"/tmp/gt-{os.getuid()}")


def test_a_name_is_held_by_one(home: RuntimeDirectory) -> None:
    first = home.reserve("one")
    with pytest.raises(NameTaken, match=f"process {os.getpid()} has it"):
        home.reserve("one")
    home.reserve("two").release()
    first.release()
    first.release()
    home.reserve("one").release()
    assert list(home.clusters.iterdir()) == []


def test_a_running_clusters_name_is_taken_even_without_its_lock(home: RuntimeDirectory) -> None:
    home.write(running("one"))
    with pytest.raises(NameTaken, match=f"process {os.getpid()}"):
        home.reserve("one")


def test_a_dead_clusters_name_is_free(home: RuntimeDirectory) -> None:
    home.write(dead("one"))
    home.reserve("one").release()


def test_a_starting_cluster_is_not_tidied_away(home: RuntimeDirectory) -> None:
    held = home.reserve("one")
    home.run_dir("one").mkdir(parents=True)
    home.tidy()
    assert home.run_dir("one").exists()
    held.release()
    home.tidy()
    assert not home.run_dir("one").exists()


def test_tidy_keeps_the_newest_logs_of_embedded_clusters(home: RuntimeDirectory) -> None:
    now = time.time()
    for index in range(connection._KEPT_LOGS + 5):
        folder = home.log_dir(f"embedded-{index}")
        folder.mkdir(parents=True)
        os.utime(folder, (now - index, now - index))
    ancient = home.log_dir("embedded-7")
    os.utime(ancient, (now - 10 * connection._LOG_SECONDS,) * 2)
    home.log_dir("one").mkdir()
    home.tidy()
    left = {p.name for p in (home.root / "logs").iterdir()}
    assert "one" in left and "embedded-0" in left
    assert ancient.name not in left
    assert len(left) == connection._KEPT_LOGS + 1


def test_reservation_survives_a_removed_file(home: RuntimeDirectory) -> None:
    path = home.clusters / "one.lock"
    first = Reservation.take(path)
    assert isinstance(first, Reservation)
    path.unlink()
    second = Reservation.take(path)
    assert isinstance(second, Reservation), "a new file is a new lock"
    second.release()


def test_start_time_tells_processes_apart() -> None:
    assert parent.alive(os.getpid(), parent.start_time(os.getpid()))
    assert not parent.alive(os.getpid(), 1)
    assert parent.start_time(2**22 + 1) is None
    assert parent.wait_end(2**22 + 1, 0)
    assert not parent.wait_end(os.getpid(), 0)
