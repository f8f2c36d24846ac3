"""The whole of GT at work on this machine (``make demo``): a cluster, two training programs, gt-top watching.

Starts what a person would start by hand, each as a program of its own::

    gt up --name demo-PID --workers 2 --device cpu
    python examples/gpt.py --device mux                # GT_CLUSTER=demo-PID in both
    gt run examples/digits.py --device mux
    gt-top --name demo-PID

and ends it all when gt-top is left (q), after ``--seconds``, on Ctrl-C or a kill; then says what was trained. Without a
terminal gt-top's one-shot table is printed every few seconds instead. Knows only the commands, not their insides.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
GT = (sys.executable, "-m", "gt_runtime")
GT_TOP = (sys.executable, "-m", "gt_top")

START_SECONDS = 130.0  # for the cluster to be ready; `gt up` gives up by itself before, and says why
FIRST_SECONDS = 120.0  # for both programs to import torch and take their first steps, on a slow or busy machine
STOP_SECONDS = 20.0  # for a program to finish its step and write its results, and for a cluster to stop
TABLE_SECONDS = 4.0  # between two tables, where no terminal is
TAIL_LINES = 15
PR_SET_PDEATHSIG = 1  # prctl: a signal when the parent ends, however it ends

_libc = ctypes.CDLL(None, use_errno=True)


class Ended(Exception):
    """Somebody wants the demo to end; the text says who or what."""


class Failed(Exception):
    """The demo can't go on; the text says why."""


def end_with_parent() -> None:
    """This process gets SIGTERM when the one that started it ends. Between fork and exec, too."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended(signal.Signals(number).name)


class Program:
    """A background program of the demo with its log; not reached by the terminal's Ctrl-C, gone when the demo is."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.command = command
        self.log = folder / f"{name}.log"
        self.told_to_end = False  # while it ran: what it does then is no failure of its own
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip

    def running(self) -> bool:
        return self.process.poll() is None

    def tell_to_end(self) -> None:
        """SIGTERM, if it still runs."""
        if self.running():
            self.told_to_end = True
            self.process.terminate()

    def stop(self) -> bool:
        """Tell it to end, then SIGKILL if that isn't heard; False if it took the latter."""
        if not self.told_to_end:
            self.tell_to_end()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True

    def told(self) -> str:
        """The end of its log, indented."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (it said nothing)"


class Trainer(Program):
    """One of the training programs, and what it reports at its end."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.report = folder / f"{name}.json"
        super().__init__(name, (*command, "--device", "mux", "--json", str(self.report)), folder, environment)

    def has_begun(self) -> bool:
        """Whether it has told of its first steps."""
        return "step " in self.log.read_text(errors="replace")

    def summary(self) -> tuple[bool, str]:
        """Whether it ended well, and a line about what it did."""
        status = self.process.returncode
        found: dict[str, Any] = json.loads(self.report.read_text()) if self.report.exists() else {"steps": 0}
        steps, losses = found["steps"], found.get("losses", ())
        if self.told_to_end and not steps and status in (0, -signal.SIGTERM):
            return True, f"  {self.name:<8} was ended before its first step"
        if status != 0 or not steps:
            return False, f"  {self.name:<8} ended with exit status {status}:\n{self.told()}"
        text = f"  {self.name:<8}{steps:>7,} steps  {steps / found['seconds']:>6.1f} steps/s"
        text += f"   loss {losses[0]:.3f} -> {losses[-1]:.3f}"
        if "accuracy" in found:
            text += f"   {found['accuracy']:.1%} of the test pictures right"
        return True, text


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    workers: int
    seconds: float | None


class Demo:
    """Starts, shows and ends everything. ``run`` leaves nothing running, whatever happens inside."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.name = f"demo-{os.getpid()}"
        self.environment = {k: v for k, v in os.environ.items() if k not in ("GT_ADDRESS", "GT_WORKERS", "GT_CONFIG")}
        self.environment |= {"GT_CLUSTER": self.name, "PYTHONUNBUFFERED": "1"}
        self.cluster: Program | None = None
        self.trainers: list[Trainer] = []

    def run(self) -> int:
        """Returns the exit status: 0 if both programs trained and everything ended when told to."""
        problem = ""
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, on_signal)
            self.start()
            self.show()
        except Ended as ended:
            say(f"\nending ({ended})")
        except Failed as failed:
            problem = str(failed)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # ending takes seconds and is not to be cut short
            clean = self.end()
        return self.tell(problem, clean)

    def start(self) -> None:
        """The cluster, until it is ready, then the programs, until both train."""
        workers = self.options.workers
        say(f"starting a cluster of {workers} CPU workers ...")
        up = (*GT, "up", "--name", self.name, "--workers", str(workers), "--device", "cpu")
        self.cluster = Program("cluster", up, self.folder, self.environment)
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            if not self.cluster.running():
                raise Failed(f"the cluster ended at once ({shlex.join(up)}):\n{self.cluster.told()}")
            if time.monotonic() > deadline:
                raise Failed(f"the cluster wasn't ready within {START_SECONDS:g} s:\n{self.cluster.told()}")
            time.sleep(0.1)
        say("training examples/gpt.py and examples/digits.py on it")
        gpt = (sys.executable, str(HERE / "gpt.py"))
        digits = (*GT, "run", str(HERE / "digits.py"))
        for name, command in (("gpt", gpt), ("digits", digits)):
            self.trainers.append(Trainer(name, command, self.folder, self.environment))
        deadline = time.monotonic() + FIRST_SECONDS
        while late := [t for t in self.trainers if not t.has_begun()]:
            if ended := [t for t in self.trainers if not t.running()]:
                raise Failed(f"{ended[0].name} ended before the show began")
            if time.monotonic() > deadline:
                raise Failed(f"{late[0].name} took no step within {FIRST_SECONDS:g} s:\n{late[0].told()}")
            time.sleep(0.1)

    def ready(self) -> bool:
        """Whether the cluster's connection file is there: it is written when all workers are ready."""
        from gt_runtime.launch import connection, errors

        try:
            connection.find(self.name)
        except errors.NoCluster:
            return False
        return True

    def show(self) -> None:
        """gt-top in the terminal until it is left, or tables where there is none; returns when it is time to end."""
        deadline = None if self.options.seconds is None else time.monotonic() + self.options.seconds
        if all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            self.watch(deadline)
        else:
            self.print_tables(deadline)

    def watch(self, deadline: float | None) -> None:
        # In our own process group: only the terminal's foreground group may read keys.
        top = subprocess.Popen((*GT_TOP, "--name", self.name), env=self.environment, preexec_fn=end_with_parent)
        try:
            status = top.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if status:
                raise Failed(f"gt-top ended with exit status {status}")
        except subprocess.TimeoutExpired:
            pass
        finally:
            if top.poll() is None:
                top.terminate()  # it restores the terminal
                try:
                    top.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    top.kill()
                    top.wait()

    def print_tables(self, deadline: float | None) -> None:
        while deadline is None or time.monotonic() < deadline:
            left = TABLE_SECONDS if deadline is None else min(TABLE_SECONDS, deadline - time.monotonic())
            time.sleep(max(0.0, left))
            if not any(t.running() for t in self.trainers):
                raise Failed("both programs ended by themselves")
            table = subprocess.run(
                (*GT_TOP, "--name", self.name, "--once"), env=self.environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=STOP_SECONDS, preexec_fn=end_with_parent,
            )  # fmt: skip
            if table.returncode:
                raise Failed(f"gt-top --once ended with exit status {table.returncode}: {table.stderr.strip()}")
            say(table.stdout.rstrip() + "\n")

    def end(self) -> list[str]:
        """End the programs, then the cluster. Returns the names of those that had to be killed."""
        for trainer in self.trainers:  # all at once, then wait for each
            trainer.tell_to_end()
        programs: list[Program] = [*self.trainers, *([self.cluster] if self.cluster else [])]
        return [program.name for program in programs if not program.stop()]

    def tell(self, problem: str, killed: list[str]) -> int:
        good = not problem and not killed
        if self.trainers:
            say(f"trained on {self.options.workers} CPU workers:")
        for trainer in self.trainers:
            fine, text = trainer.summary()
            good &= fine
            say(text)
        if self.cluster and self.cluster.process.returncode:
            good = False
            say(f"the cluster ended with exit status {self.cluster.process.returncode}:\n{self.cluster.told()}")
        if killed:
            say(f"had to be killed: {', '.join(killed)}")
        if problem:
            print(f"demo: {problem}", file=sys.stderr)
        return 0 if good else 1


def say(text: str) -> None:
    """Print at once; a terminal that is gone is no reason to leave things running."""
    try:
        print(text, flush=True)
    except OSError:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description="two training programs on a local cluster, watched by gt-top")
    parser.add_argument("--workers", type=int, default=2, help="CPU workers (default: 2)")
    parser.add_argument("--seconds", type=float, help="end after so many seconds (default: when gt-top is left)")
    args = parser.parse_args()
    end_with_parent()
    with tempfile.TemporaryDirectory(prefix="gt-demo-") as folder:
        return Demo(Options(args.workers, args.seconds), Path(folder)).run()


if __name__ == "__main__":
    sys.exit(main())
