"""Running many small items in processes that may crash or hang, so that each costs one item and no more.

A ``Child`` is a Python process (``tests.conformance.child``) that takes item names on a pipe and answers with JSON.
``run_all`` shares items among several children. Knows nothing of what an item is.
"""

from __future__ import annotations

import json
import os
import queue
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_SECONDS = 150.0  # import torch and the operator database, start a cluster: 10 s, on a crowded machine much more
ITEM_SECONDS = 90.0
STOP_SECONDS = 10.0
LOG_TAIL = 1500  # characters of a dead child's stderr that are worth reading

Answer = dict[str, Any]


@dataclass
class Child:
    """One process, started when first asked, replaced after a crash, a hang or an unhealthy answer.

    ``arguments`` follow ``python -m tests.conformance.child``. Not for use from several threads at once.
    """

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    item_seconds: float = ITEM_SECONDS
    module: str = "tests.conformance.child"
    _process: subprocess.Popen[bytes] | None = None
    _asks: Any = None
    _answers: int = -1
    _buffer: bytes = b""
    _folder: Path | None = None

    def ask(self, item: str) -> Answer:
        """The child's answer; ``outcome: crashed`` with its last words when it has none in time."""
        began = time.monotonic()
        if self._process is None:
            failed = self._start()
            if failed is not None:
                return {"key": item, "outcome": "crashed", "details": [failed], "seconds": time.monotonic() - began}
        began = time.monotonic()
        answer, lost = self._exchange({"item": item, "seconds": self.item_seconds}, self.item_seconds)
        if answer is None:
            detail = f"{lost}; its last words: {self._last_words()}"
            self.stop()
            answer = {"key": item, "outcome": "crashed", "details": [detail]}
        elif not answer.pop("healthy", True):
            self.stop()
        answer["seconds"] = round(time.monotonic() - began, 3)
        return answer

    def stop(self) -> None:
        """End the process, kindly first, and remove its runtime directory."""
        process, self._process = self._process, None
        if process is not None:
            self._asks.close()
            try:
                process.wait(STOP_SECONDS if process.poll() is None else 0.1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(self._answers)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> str | None:
        self._folder = Path(tempfile.mkdtemp(prefix="gtc-"))  # short: ipc socket paths end at 107 characters
        (self._folder / "run").mkdir(mode=0o700)
        asks_read, asks_write = os.pipe()
        answers_read, answers_write = os.pipe()
        command = [sys.executable, "-m", self.module, *self.arguments, str(asks_read), str(answers_write)]
        environment = os.environ | {"GT_WORKERS": "2", "OMP_NUM_THREADS": "1"} | self.environment
        environment["GT_RUNTIME_DIR"] = str(self._folder / "run")  # a cluster of its own, never the user's running one
        environment.pop("GT_ADDRESS", None)
        with open(self._folder / "stderr", "wb") as log:
            self._process = subprocess.Popen(
                command,
                pass_fds=(asks_read, answers_write),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        os.close(asks_read)
        os.close(answers_write)
        self._asks, self._answers, self._buffer = os.fdopen(asks_write, "wb"), answers_read, b""
        ready, lost = self._exchange(None, START_SECONDS)
        if ready is None:
            detail = f"the child process did not start: {lost}; its last words: {self._last_words()}"
            self.stop()
            return detail
        return None

    def _exchange(self, ask: Any, seconds: float) -> tuple[Answer | None, str]:
        assert self._process is not None
        try:
            if ask is not None:
                self._asks.write(json.dumps(ask).encode() + b"\n")
                self._asks.flush()
        except OSError:
            return None, f"the process was gone (exit status {self._process.poll()})"
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                return None, f"no answer in {seconds:.0f} s"
            if not select.select([self._answers], [], [], left)[0]:
                continue
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                return None, f"the process ended with status {self._process.wait(STOP_SECONDS)}"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line), ""

    def _last_words(self) -> str:
        if self._folder is None:
            return "none"
        text = (self._folder / "stderr").read_text(errors="replace")[-LOG_TAIL:]
        return " | ".join(line.strip() for line in text.splitlines() if line.strip()) or "none"


def run_all(items: Iterable[str], make_child: Callable[[], Child], jobs: int, seen: Callable[[Answer], None]) -> None:
    """Ask every item once, ``jobs`` at a time; ``seen`` gets each answer, one call at a time, in the order they
    come.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        child = make_child()
        try:
            while not errors:
                answer = child.ask(waiting.get_nowait())
                with lock:
                    seen(answer)
        except queue.Empty:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            child.stop()

    threads = [threading.Thread(target=work, name=f"conformance-{index}") for index in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
