"""This process's session: finds, starts or joins a cluster at the first use, sends the stream, fetches and uploads.

The native part (``gt._native``) records; it calls ``_flush``, ``_verdict``, ``_fetch`` and ``_synchronize`` here. One
session at a time; after ``shutdown`` the next use starts another, and values of the old one are refused.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgpack
import torch
import zmq

from gt import errors
from gt._native import _capture
from gt.arena import Arena, Region
from gt.bulk import Bulk
from gt.errors import ClusterError
from gt.link import Credit, Link
from gt.pulse import Pulse
from gt_runtime.launch import connection
from gt_runtime.launch.errors import NoCluster
from gt_runtime.protocol import handshake, limits, messages
from gt_runtime.protocol.messages import Failure

if TYPE_CHECKING:
    from gt_runtime.launch.embedded import Embedded

_CONNECT_SECONDS = 30.0  # for the dispatcher's Welcome: an embedded one is starting meanwhile
_WINDOW_SECONDS = 0.001  # a batch that nobody fills leaves after this long
_IDLE_SECONDS = 0.5  # how long the window's thread sleeps where nothing is recorded
_PARK_SECONDS = 0.02  # at the program's end: its daemon threads get this long to come to rest
_HUGE_BYTES = 4 << 20  # a fetched tensor of this size asks for huge pages before it is filled
_DTYPES: dict[int, torch.dtype] = {}


def dtype_of(number: int) -> torch.dtype:
    """The torch dtype of ATen's ScalarType ``number``."""
    if not _DTYPES:
        _DTYPES.update(_capture.dtypes())
    return _DTYPES[number]


class Session:
    """A connected client. Made by ``current()``; never by users."""

    def __init__(self, where: connection.Connection, started: Embedded | None) -> None:
        self.connection, self._embedded = where, started
        self.context: zmq.Context[Any] = zmq.Context()
        self.link = Link(self.context, where.front)
        self._results: dict[int, messages.Result] = {}
        self._given_up: set[int] = set()  # requests whose answers nobody waits for
        self._uploads: set[int] = set()  # requests of uploads: their answers only free memory
        self._regions: dict[int, Region] = {}  # request -> memory that a worker reads or writes until it answers
        self._flushing = threading.RLock()
        self._sent = 0  # seq of the last batch or upload that left
        self.link.on(messages.Result, self._result)
        self.link.on(messages.Notice, self._notice)
        try:
            self.facts = self._join()
        except BaseException:
            self._teardown()
            raise
        self.id, key = str(self.facts["id"]), str(self.facts["key"])
        self.credit = Credit(self.link, int(self.facts["credit_instructions"]), int(self.facts["credit_bytes"]))
        self.credit.acknowledged = _capture.acknowledge
        self.arena = Arena() if self.facts.get("same_host") else None
        self.bulk = Bulk(self.context, self.facts["endpoints"]["bulk"], self.id, key)
        pid = self.facts.get("pid") if self.facts.get("same_host") else None
        self.pulse = Pulse(self.context, self.facts["endpoints"]["pulse"], self.id, key, pid, self._gone)

    # -- joining and leaving ----------------------------------------------------------------------------------------

    def _join(self) -> dict[str, Any]:
        answer: list[Any] = []
        self.link.on(messages.Welcome, answer.append)
        self.link.on(messages.Refused, answer.append)
        facts = handshake.facts(
            "client",
            torch.__version__,
            _capture.schema_hash(),
            tenant=os.environ.get("GT_TENANT", ""),
            embedded=self._embedded is not None,
        )
        self.link.send(messages.Hello(facts))
        until = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                reply = self.link.wait(lambda: answer, 0.5, "joining the cluster")[0]
                break
            except ClusterError:
                if self._embedded is not None:
                    self._embedded.check()
                if time.monotonic() > until:
                    raise ClusterError(
                        f"joining the cluster at {self.connection.front}: no answer for {_CONNECT_SECONDS:.0f} s; "
                        "is it running? see gt status"
                    ) from None
        self.link.on(messages.Refused, self._refused)
        if isinstance(reply, messages.Refused):
            raise ClusterError(f"the cluster refused this program: it asked {reply.asked}; {reply.found}; {reply.do}")
        found: dict[str, Any] = reply.facts
        return found

    def close(self, reason: str = "the program said goodbye") -> None:
        """Says goodbye, drops what wasn't sent, and stops an embedded cluster."""
        if self.link.failure is None:
            try:
                self.link.send(messages.Close("", reason))
            except zmq.ZMQError:
                pass
        self.pulse.stop()
        self._teardown()

    def _teardown(self) -> None:
        _capture.end()
        self.link.close()
        if hasattr(self, "bulk"):
            self.bulk.close()
        self.context.destroy(linger=200)
        if getattr(self, "arena", None) is not None:
            self.arena.close()  # type: ignore[union-attr]  # looked at above
        if self._embedded is not None:
            self._embedded.stop()

    # -- sending ----------------------------------------------------------------------------------------------------

    def flush(self, question: Any | None = None) -> None:
        """Sends what was recorded, in order, and ``question`` together with the last of it."""
        with self._flushing:
            while (item := _capture.first()) is not None:
                if self.link.failure is not None:
                    raise self.link.failure
                if len(item) == 4:
                    self._upload(*item)
                    continue
                last = question is not None and _capture.waiting() == 1
                self._batch((question,) if last else (), *item)
                if last:
                    return
            if question is not None:
                self.link.send(question)

    def _batch(
        self,
        more: tuple[Any, ...],
        seq: int,
        base: int,
        outputs: int,
        instructions: int,
        verdict: int,
        definitions: list[bytes],
        signals: list[Any],
        words: bytes,
    ) -> None:
        self.credit.take(instructions, 0)
        read = [msgpack.unpackb(d) for d in definitions]
        self.link.send(messages.Batch("", seq, base, outputs, instructions, verdict, read, signals, words), *more)
        self._sent = seq
        _capture.sent(seq)

    def _upload(self, seq: int, id: int, meta: tuple[int, list[int], list[int], int], data: torch.Tensor) -> None:
        nbytes = data.numel() * data.element_size()
        self.credit.take(1, nbytes)
        request, source, payload = 0, None, b""
        if nbytes <= limits.INLINE_BYTES:
            payload = _bytes_of(data)
        elif (region := self._region(nbytes)) is not None:
            torch.frombuffer(region.view, dtype=torch.uint8).copy_(_flat(data))
            request, source = _capture.new_request(), region.address
            self._regions[request] = region
            self._uploads.add(request)
        else:
            transfer = _capture.new_request()
            self.bulk.upload(transfer, _flat(data).numpy().data)
            source = ["s", transfer, nbytes]
        self.link.send(messages.Upload("", seq, request, id, list(meta), source, payload))
        self._sent = seq
        _capture.sent(seq)

    def _region(self, nbytes: int) -> Region | None:
        if self.arena is None:
            return None
        try:
            return self.arena.allocate(nbytes)
        except OSError:  # no shared memory or descriptors left: chunks do it too
            return None

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(self, request: int, message: Any | None) -> messages.Result:
        """Sends ``message`` (None: it went with a batch) and waits for the Result of ``request``."""
        try:
            self.flush(message)
            result: messages.Result = self.link.wait(lambda: self._results.pop(request, None))
            return result
        except BaseException:  # an interrupt: nobody waits for the answer any more
            self._given_up.add(request)
            if self._results.pop(request, None) is not None:
                self._given_up.discard(request)
            raise

    def verdict(self, request: int, site: int) -> list[Any]:
        """Output metas of the template whose first call, at source line ``site``, is asked about by ``request``.
        Raises PyTorch's own error for a wrong call, and the first cause where an input has no value.
        """
        result = self.ask(request, None)
        if result.failure is not None:
            raise self.exception(result.failure, at_the_call=Failure(*result.failure).site == site)
        return result.body  # type: ignore[no-any-return]  # checked by the native part

    def fetch(self, id: int, sizes: list[int], dtype: int) -> torch.Tensor:
        """The value ``id`` as a new contiguous CPU tensor. ``dtype`` is ATen's ScalarType number."""
        request = _capture.new_request()
        kind = dtype_of(dtype)
        nbytes = math.prod(sizes) * kind.itemsize
        if nbytes <= limits.INLINE_BYTES:
            return _capture.tensor_of(self._fetched(request, id, None).data, sizes, dtype)
        out = torch.empty(sizes, dtype=kind)
        if nbytes >= _HUGE_BYTES:
            _capture.use_huge_pages(out.data_ptr(), nbytes)
        if (region := self._region(nbytes)) is not None:
            self._regions[request] = region  # an interrupted fetch leaves it there until the worker has answered
            self._fetched(request, id, region.address)
            _flat(out).copy_(torch.frombuffer(region.view, dtype=torch.uint8))
            self._release(request)
        else:
            self._in_chunks(request, id, out)
        return out

    def _fetched(self, request: int, id: int, sink: list[Any] | None) -> messages.Result:
        result = self.ask(request, messages.Fetch("", self._sent, request, id, sink))
        if result.failure is not None:
            self._release(request)
            raise self.exception(result.failure, at_the_call=False)
        return result

    def _in_chunks(self, request: int, id: int, out: torch.Tensor) -> None:
        flat = _flat(out)
        self.bulk.expect(request, flat.numpy().data)
        try:
            self._fetched(request, id, ["s", request, flat.numel()])

            def given_up() -> bool:  # a second Result says that the worker was lost on the way
                self.link.pump()
                return request in self._results

            self.bulk.wait(request, given_up)
            if request in self._results:
                raise self.exception(self._results[request].failure or [], at_the_call=False)
        finally:
            self.bulk.forget(request)
            self._results.pop(request, None)

    def _release(self, request: int) -> None:
        """The worker has answered: the memory lent for ``request`` is free again."""
        if (region := self._regions.pop(request, None)) is not None and self.arena is not None:
            self.arena.free(region)

    def synchronize(self, want_log: bool = False, raising: bool = True) -> list[Any]:
        """Waits until all that was issued has run; raises the first failure not yet reported (if ``raising``). One
        entry a worker: ``[worker, executed, log]``.
        """
        _capture.cut()
        request = _capture.new_request()
        result = self.ask(request, messages.Sync("", self._sent, request, want_log))
        if raising and result.failure is not None:
            raise self.exception(result.failure, at_the_call=False)
        return result.body or []

    def exception(self, packed: list[Any], at_the_call: bool) -> Exception:
        failure = Failure(*packed)
        file, line = _capture.site(failure.site)
        return errors.exception_of(failure, f"{file}:{line}" if file else "", at_the_call)

    # -- what arrives (under the link's lock) -----------------------------------------------------------------------

    def _result(self, result: messages.Result) -> None:
        # Kept even where nobody waits yet: another thread may have sent the question before its owner came to wait.
        request = result.request
        if request in self._uploads or request in self._given_up:
            self._uploads.discard(request)
            self._given_up.discard(request)
            self._release(request)
        else:
            self._results[request] = result

    def _notice(self, notice: messages.Notice) -> None:
        if notice.level == "fatal":
            self.link.failure = self.link.failure or ClusterError(f"this session is over: {notice.text}")
        else:
            print(f"gt: {notice.text}", file=sys.stderr, flush=True)

    def _refused(self, refused: messages.Refused) -> None:
        text = f"the cluster refused a message: {refused.asked}; {refused.found}; {refused.do}"
        self.link.failure = self.link.failure or ClusterError(text)

    def _gone(self, reason: str) -> None:
        error = ClusterError(f"the cluster {self.connection.name or self.connection.front} is gone: {reason}")
        self.bulk.fail(error)
        self.link.fail(error)


def _flat(data: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous CPU tensor, one dimension."""
    with torch.no_grad():
        return data.detach().reshape(-1).view(torch.uint8) if data.numel() else torch.empty(0, dtype=torch.uint8)


def _bytes_of(data: torch.Tensor) -> bytes:
    return _flat(data).numpy().tobytes()


# --------------------------------------------------------------------------------------------------------------
# The one session of the process
# --------------------------------------------------------------------------------------------------------------

_session: Session | None = None
_starting = threading.RLock()
_wanted_workers: int | None = None
_in_child = False


def current() -> Session:
    """The session, started at the first use."""
    if _session is not None:
        return _session
    return connect()


def connect(name_or_address: str | None = None) -> Session:
    """Joins a cluster: the named one, or the one that is found, or a private embedded one.

    Args:
        name_or_address: a cluster's name, an address (``ipc://...``, ``tcp://host:port``), or None: ``GT_ADDRESS``,
        ``GT_CLUSTER``, the
            user's running cluster, else an embedded one.

    Raises:
        ClusterError: no such cluster, several to choose from, or it refused this program.
    """
    global _session
    with _starting:
        if _in_child:
            raise ClusterError("mux can't be used in a forked child: the session belongs to the parent")
        if _session is not None:
            if name_or_address is None:
                return _session
            shutdown()
        where, started = _find(name_or_address)
        _session = Session(where, started)
        return _session


def _find(name_or_address: str | None) -> tuple[connection.Connection, Embedded | None]:
    address = name_or_address if name_or_address and "://" in name_or_address else None
    name = name_or_address if name_or_address and address is None else None
    if _wanted_workers is None or name_or_address:
        try:
            return connection.find(name=name, address=address), None
        except NoCluster as error:
            if name_or_address or os.environ.get(connection.ENV_ADDRESS) or os.environ.get(connection.ENV_CLUSTER):
                raise ClusterError(str(error)) from None
        except Exception as error:
            raise ClusterError(str(error)) from error
    from gt_runtime.launch import embedded  # what starts clusters isn't needed by who joins one

    try:
        started = embedded.start_embedded(workers=_wanted_workers)
    except Exception as error:
        raise ClusterError(f"starting a private cluster: {error}") from error
    return started.connection, started


def shutdown() -> None:
    """Ends the session; an embedded cluster with it. Values of it can't be used any more; the next use starts
    another session.
    """
    global _session
    with _starting:
        session, _session = _session, None
        if session is not None:
            session.close()


def synchronize() -> None:
    """Waits until everything issued so far has run. Raises the first failure that nobody has seen yet."""
    if _in_child:
        raise ClusterError("mux can't be used in a forked child: the session belongs to the parent")
    if _session is not None:
        _session.synchronize()


def gpu_workers(n: int) -> None:
    """How many workers the private embedded cluster gets; to be called before the first use of mux.

    Raises:
        ValueError: n isn't a positive number.
        ClusterError: a session is running already.
    """
    global _wanted_workers
    if type(n) is not int or n < 1:
        raise ValueError(f"gpu_workers takes a positive number of workers, not {n!r}")
    if _session is not None:
        raise ClusterError(
            "a session is running already: call gt.gpu_workers before the first use of mux, or gt.shutdown() first"
        )
    _wanted_workers = n


def _window() -> None:
    """The batching window: what nobody sends leaves a moment later."""
    while not _stopping.is_set():
        if _capture.wait_window(_WINDOW_SECONDS, _IDLE_SECONDS) and _session is not None:
            try:
                _capture.cut()
                _session.flush()
            except Exception:  # the user's next call meets the same failure, where it can be raised
                time.sleep(_IDLE_SECONDS)


_stopping = threading.Event()
_window_thread: threading.Thread | None = None


def _flush() -> None:
    global _window_thread
    session = current()
    if _window_thread is None:
        _window_thread = threading.Thread(target=_window, name="gt-window", daemon=True)
        _window_thread.start()
    session.flush()


def _verdict(request: int, site: int) -> list[Any]:
    return current().verdict(request, site)


def _fetch(id: int, sizes: list[int], dtype: int) -> torch.Tensor:
    _capture.cut()
    return current().fetch(id, sizes, dtype)


def _synchronize() -> None:
    synchronize()


def _at_exit() -> None:
    _stopping.set()
    if _in_child:
        return
    _capture.end_of_program()
    if any(t is not threading.current_thread() and not t.name.startswith("gt-") for t in threading.enumerate()):
        time.sleep(_PARK_SECONDS)
    try:
        if _session is not None and _session.link.failure is None:
            _capture.cut()
            _session.flush()
    except Exception:  # the program is ending; what failed was reported where it was used
        pass
    shutdown()


def _after_fork() -> None:
    global _session, _in_child
    _in_child, _session = True, None


def install() -> None:
    """Connects the native part with this module; once, at ``import gt``."""
    _capture.connect_callbacks(_flush, _verdict, _fetch, _synchronize, errors.NotSupported)
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_at_exit)
