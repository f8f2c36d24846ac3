"""The command ``gt``: its words and options, and what becomes of errors. ``docs/cli.md`` is this file in prose.

Parses and hands over; what a command does is in ``gt_runtime/commands``, imported when it runs. Never imports torch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from gt_runtime import __version__

_EPILOG = """\
The cluster that is meant: --name NAME or --connect ADDRESS, else $GT_ADDRESS or $GT_CLUSTER, else the only one running.
Exit status: 0 done, 1 failed or refused, 2 wrong usage, 3 no such cluster or no answer (`gt run`: the program's own).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["run"]:
        return _run_program(argv[1:])
    if argv[:1] == ["dispatcher"] and any(a.split("=")[0] == "--run-dir" for a in argv):
        from gt_runtime.commands import join

        join.dispatcher(argv[1:])
    parsed = build_parser().parse_args(argv)
    try:
        return _dispatch(parsed)
    except BrokenPipeError:  # `gt logs | head`: the reader has enough; keep the interpreter from flushing into it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        print(f"gt: {error}", file=sys.stderr)
        return status


def _status_of(error: Exception) -> int | None:
    """The exit status of an error that is told in a message; None for a fault of ours, which shows its traceback."""
    from gt_runtime.commands.common import Exit, Unreachable
    from gt_runtime.control.client import ControlError
    from gt_runtime.launch.errors import AmbiguousCluster, BadAddress, LaunchError, NoCluster

    if isinstance(error, (NoCluster, AmbiguousCluster, Unreachable)):
        return Exit.NO_CLUSTER
    if isinstance(error, BadAddress):
        return Exit.USAGE
    if isinstance(error, (LaunchError, ControlError)):
        return Exit.FAILED
    schema = sys.modules.get("gt_runtime.sharding.schema")  # imported only where a file was read
    return Exit.FAILED if schema is not None and isinstance(error, schema.SchemaError) else None


# -- words and options ------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, ``gt run``'s own apart."""
    parser = argparse.ArgumentParser(
        prog="gt",
        description="Run PyTorch programs on a shared pool of workers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gt {__version__}")
    words = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_up(words)
    cluster = _cluster_options()
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON, for programs")
    for word, about in (
        ("down", "stop a cluster, and wait until it is gone"),
        ("status", "one cluster as a whole"),
        ("workers", "its workers"),
    ):
        words.add_parser(word, help=about, description=about, parents=[cluster, as_json], allow_abbrev=False)
    _add_sessions(words, cluster, as_json)
    _add_logs(words, cluster, as_json)
    _add_processes(words, cluster)
    about = "whether this host has what GT needs"
    words.add_parser("doctor", help=about, description=about, parents=[as_json], allow_abbrev=False)
    about = "run a Python script that uses the device mux"
    words.add_parser("run", help=about, description=about)  # for the list alone: `main` takes it before
    return parser


def _cluster_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    which = options.add_mutually_exclusive_group()
    which.add_argument("--name", help="name of a running cluster ($GT_CLUSTER)")
    which.add_argument("--connect", metavar="ADDRESS", help="its address, ipc://PATH or tcp://HOST:PORT ($GT_ADDRESS)")
    return options


def _add_up(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "start a cluster on this host"
    up = words.add_parser("up", help=about, description=about, allow_abbrev=False)
    up.add_argument("--workers", type=_positive, metavar="N", help="how many (default: one a GPU, 2 on CPU)")
    up.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="for workers (default: auto)")
    up.add_argument("--threads", type=_positive, metavar="N", help="of each CPU worker (default: cores shared out)")
    up.add_argument("--config", metavar="FILE", help="a YAML file of signals; checked and kept, nothing acts on it yet")
    _add_cluster_start(up)
    up.add_argument("--detach", action="store_true", help="return once it is ready; it goes on in the background")
    up.add_argument("--json", action="store_true", help="say where it is as JSON")


def _add_cluster_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="a name for the cluster ($GT_CLUSTER, else 'local')")
    parser.add_argument("--listen", type=_listen, metavar="tcp://HOST[:PORT]", help="listen on tcp too")
    parser.add_argument("--session-memory", type=_size, default=0, metavar="SIZE", help="cap of a session on a worker")
    parser.add_argument("--turn-bytes", type=_size, metavar="SIZE", help="new values before the next worker's turn")


def _add_sessions(
    words: argparse._SubParsersAction[argparse.ArgumentParser],
    cluster: argparse.ArgumentParser,
    as_json: argparse.ArgumentParser,
) -> None:
    about = "programs that are connected; `sessions kill ID` ends one"
    parents = [cluster, as_json]
    sessions = words.add_parser("sessions", help=about, description=about, parents=parents, allow_abbrev=False)
    sessions.add_argument("action", nargs="?", choices=("kill",), help="end a session")
    sessions.add_argument("session", nargs="?", metavar="ID", help="which one, such as s1")
    sessions.add_argument("--reason", default="killed by its cluster's user", help="what its program is told")


def _add_logs(
    words: argparse._SubParsersAction[argparse.ArgumentParser],
    cluster: argparse.ArgumentParser,
    as_json: argparse.ArgumentParser,
) -> None:
    about = "what the processes of a cluster wrote"
    logs = words.add_parser("logs", help=about, description=about, parents=[cluster, as_json], allow_abbrev=False)
    logs.add_argument("who", nargs="?", help="dispatcher, w0, ..., or up (a detached cluster itself); default: all")
    logs.add_argument("--follow", "-f", action="store_true", help="go on with what is added, until Ctrl-C")
    logs.add_argument("--lines", "-n", type=_positive, default=50, metavar="N", help="of each log's end (default: 50)")


def _add_processes(
    words: argparse._SubParsersAction[argparse.ArgumentParser], cluster: argparse.ArgumentParser
) -> None:
    about = "a cluster without workers of its own; they join with `gt worker`"
    dispatcher = words.add_parser("dispatcher", help=about, description=about, allow_abbrev=False)
    _add_cluster_start(dispatcher)
    dispatcher.add_argument("--json", action="store_true", help="say where it is as JSON")
    about = "join a running cluster as a worker"
    worker = words.add_parser("worker", help=about, description=about, parents=[cluster], allow_abbrev=False)
    worker.add_argument("--device", help="cpu, cuda:N or the uuid of a MIG slice (default: cpu)")
    worker.add_argument("--id", help="a name such as w7 (default: the next free one)")
    worker.add_argument("--threads", type=_positive, metavar="N", help="of a CPU worker")
    worker.add_argument("--memory", type=_size, metavar="SIZE", help="cap for values (default: the device's memory)")
    worker.add_argument("--parent", type=_positive, metavar="PID", help="end when this process ends")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def _size(text: str) -> int:
    from gt_runtime.commands.text import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _listen(text: str) -> str:
    if not text.startswith("tcp://"):
        raise argparse.ArgumentTypeError(f"{text!r} is no tcp://HOST[:PORT]")
    return text


# -- hand over --------------------------------------------------------------------------------------------------------


def _dispatch(parsed: argparse.Namespace) -> int:
    """Run the parsed command."""
    match parsed.command:
        case "up":
            return _up(parsed)
        case "dispatcher":
            return _dispatcher(parsed)
        case "doctor":
            from gt_runtime.commands.doctor import doctor

            return doctor(parsed.json)
        case "logs":
            from gt_runtime.commands.logs import folder, logs

            return logs(folder(parsed.name, parsed.connect), parsed.who, parsed.lines, parsed.follow, parsed.json)
    from gt_runtime.commands import common

    match parsed.command:
        case "down":
            from gt_runtime.commands.down import down

            return down(common.find(parsed, embedded=False), parsed.json)
        case "worker":
            from gt_runtime.commands import join

            back = join.back_endpoint(common.find(parsed))
            options = {f"--{key}": getattr(parsed, key) for key in ("device", "id", "memory", "parent")}
            join.worker(back, options, parsed.threads)
        case "sessions":
            return _sessions(parsed)
    from gt_runtime.commands import show

    command = {"status": show.status, "workers": show.workers}[parsed.command]
    return command(common.find(parsed), parsed.json)


def _up(parsed: argparse.Namespace) -> int:
    from gt_runtime.commands import up
    from gt_runtime.launch import devices
    from gt_runtime.launch.local import ClusterOptions

    config = None
    if parsed.config:
        from gt_runtime.sharding import schema

        config = schema.load(parsed.config).text
    slots = devices.choose(devices.DeviceKind(parsed.device), parsed.workers)
    options = ClusterOptions(
        name=_cluster_name(parsed.name),
        slots=slots,
        threads=parsed.threads or devices.threads_each(len(slots)),
        listen=parsed.listen,
        session_memory=parsed.session_memory,
        turn_bytes=parsed.turn_bytes,
        config=config,
    )
    return up.run(options, detach=parsed.detach, as_json=parsed.json)


def _dispatcher(parsed: argparse.Namespace) -> int:
    from gt_runtime.commands import up
    from gt_runtime.launch.local import ClusterOptions

    options = ClusterOptions(
        name=_cluster_name(parsed.name),
        slots=(),
        listen=parsed.listen,
        session_memory=parsed.session_memory,
        turn_bytes=parsed.turn_bytes,
    )
    return up.run(options, detach=False, as_json=parsed.json)


def _cluster_name(given: str | None) -> str:
    from gt_runtime.commands.up import DEFAULT_NAME
    from gt_runtime.launch.connection import ENV_CLUSTER

    return given or os.environ.get(ENV_CLUSTER) or DEFAULT_NAME


def _sessions(parsed: argparse.Namespace) -> int:
    from gt_runtime.commands import common, show

    if parsed.action is None:
        return show.sessions(common.find(parsed), parsed.json)
    if parsed.session is None:
        print("gt: sessions kill: which one? Give its ID; `gt sessions` lists them", file=sys.stderr)
        return common.Exit.USAGE
    return show.kill_session(common.find(parsed), parsed.session, parsed.reason, parsed.json)


def _run_program(argv: Sequence[str]) -> int:
    """``gt run [OPTIONS] [-m MODULE | SCRIPT] [ARGS ...]``: what follows the program is its own.

    Exceptions of the program pass through: they are the interpreter's to handle, as without ``gt run``.
    """
    parser = argparse.ArgumentParser(
        prog="gt run",
        usage="gt run [--name NAME | --connect ADDRESS] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Run a Python program that uses the device mux without ever importing gt. Exit status: its own.",
        parents=[_cluster_options()],
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module instead of a script")
    cut = _first_positional(argv)
    parsed = parser.parse_args(argv[:cut])
    if cut == len(argv):
        parser.error("which program? Give a script, or -m MODULE")
    # What was asked for here holds for the program, and nothing else that the environment says.
    for given, name, other in ((parsed.name, "GT_CLUSTER", "GT_ADDRESS"), (parsed.connect, "GT_ADDRESS", "GT_CLUSTER")):
        if given:
            os.environ[name] = given
            os.environ.pop(other, None)
    from gt_runtime.commands import run

    try:
        return run.run(argv[cut], argv[cut + 1 :], parsed.module)
    except run.NotRunnable as error:
        print(f"gt run: {error}", file=sys.stderr)
        return 2


def _first_positional(argv: Sequence[str]) -> int:
    """Where the program stands in the arguments of ``gt run``; their number if it is missing."""
    at = 0
    while at < len(argv):
        if not argv[at].startswith("-"):
            return at
        at += 2 if argv[at] in ("--name", "--connect") else 1
    return len(argv)


if __name__ == "__main__":
    sys.exit(main())
