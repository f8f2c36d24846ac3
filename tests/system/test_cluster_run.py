"""``gt run``: each program behaves as under plain Python.

A stand-in for ``gt`` is imported, so that torch isn't; one test uses the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.clusters import ROOT, START_SECONDS, environment

PROGRAMS = {
    "names": """
import sys
print(__name__, sys.argv, __package__, getattr(__spec__, "name", None), __cached__, sorted(globals()), __file__)
print(sys.path[0], sys.modules["__main__"].__dict__ is globals(), type(__loader__).__name__, __doc__)
""",
    "docs": '''"""Says what it is."""
print(__doc__)
''',
    "exit-4": "raise SystemExit(4)\n",
    "exit-text": "import sys\nsys.exit('it is over')\n",
    "exit-none": "import sys\nsys.exit()\n",
    "raises": """
def inner():
    raise ValueError("wrong")
def outer():
    inner()
outer()
""",
    "chained": """
try:
    1 / 0
except ZeroDivisionError as error:
    raise RuntimeError("second") from error
""",
    "syntax": "def f(:\n    pass\n",
    "own-hook": """
import sys, traceback
sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, len(traceback.extract_tb(trace)))
raise KeyError("x")
""",
    "at-exit": """
import atexit, sys
atexit.register(lambda: print("bye", sys.modules["__main__"].value))
value = 7
raise ValueError
""",
    "pickles": """
import pickle
class Thing:
    pass
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
""",
    "spawn": """
import multiprocessing
def work(x):
    return x + 1
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
""",
    "neighbour": "import neighbour_module\nprint(neighbour_module.VALUE)\n",
    "interrupted": "raise KeyboardInterrupt\n",
    "annotated": "x: int = 3\nprint(__annotations__)\n",
    "stdin": "print(input())\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, a module beside them, a package, and a stand-in for ``gt``."""
    home = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (home / f"{name}.py").write_text(text)
    (home / "neighbour_module.py").write_text("VALUE = 42\n")
    package = home / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    start = "import sys\nprint(__name__, __package__, __spec__.name, sys.argv)\nfrom . import part\n"
    (package / "__main__.py").write_text(start)
    (package / "part.py").write_text("import sys\nprint(__name__, sys.path[0])\nraise SystemExit(6)\n")
    stand_in = home / "stand-in" / "gt"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("import sys\nprint('gt is here', file=sys.stderr)\n")
    return home


def run(start: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder / "stand-in"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *start],
        capture_output=True, text=True, timeout=60, cwd=folder, input="typed\n",
        env={**os.environ, "PYTHONPATH": paths, **more},
    )  # fmt: skip


def compare(folder: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """Run a program both ways: output, errors and exit status must be the same; returns what it did."""
    plain = run(list(program), folder)
    ours = run(["-m", "gt_runtime", "run", *program], folder)
    assert ours.stdout == plain.stdout
    said = ours.stderr.splitlines()
    if "gt is here" in said:
        said.remove("gt is here")
    assert said == plain.stderr.splitlines()
    assert ours.returncode == plain.returncode
    return plain


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_runs_as_under_plain_python(folder: Path, name: str) -> None:
    compare(folder, f"{name}.py", "a", "--name", "-m", "--help")


def test_what_the_comparison_compares(folder: Path) -> None:
    """The programs do what their names say, so that equal means something."""
    assert compare(folder, "exit-4.py").returncode == 4
    assert compare(folder, "exit-text.py").stderr == "it is over\n"
    assert compare(folder, "interrupted.py").returncode == -signal.SIGINT
    assert "ValueError: wrong" in compare(folder, "raises.py").stderr
    assert compare(folder, "own-hook.py").stdout == "hook KeyError 1\n"
    assert compare(folder, "at-exit.py").stdout == "bye 7\n"
    assert compare(folder, "spawn.py").stdout == "[2, 3]\n"


def test_a_module_or_package_runs_as_under_plain_python(folder: Path) -> None:
    done = compare(folder, "-m", "package", "-m", "x")
    assert done.returncode == 6 and "__main__ package package.__main__" in done.stdout
    compare(folder, "-m", "neighbour_module")
    assert compare(folder, "-m", "names").returncode == 0


def test_a_script_in_another_folder_finds_its_neighbours(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(folder / "neighbour.py")
    assert compare(folder, str(link)).stdout == "42\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (["missing.py"], "can't open file"),
        (["-m", "missing_module"], "No module named missing_module"),
        (["-m", "stand-in"], "cannot be directly executed"),
        (["-m", "missing.module"], "Error while finding module specification"),
    ],
)
def test_what_cannot_be_run_is_status_2(folder: Path, program: list[str], words: str) -> None:
    done = run(["-m", "gt_runtime", "run", *program], folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("gt run: ") and words in done.stderr


def test_the_cluster_that_was_asked_for(folder: Path) -> None:
    script = folder / "asked.py"
    script.write_text("import os\nprint(os.environ.get('GT_CLUSTER'), os.environ.get('GT_ADDRESS'))\n")
    start = ["-m", "gt_runtime", "run"]
    both = {"GT_CLUSTER": "other", "GT_ADDRESS": "ipc:///other"}
    assert run([*start, "--name", "one", "asked.py"], folder, **both).stdout == "one None\n"
    assert run([*start, "--connect=ipc:///x", "asked.py"], folder, **both).stdout == "None ipc:///x\n"
    assert run([*start, "asked.py"], folder, **both).stdout == "other ipc:///other\n"


def test_a_script_that_never_imports_gt_uses_mux(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import torch\n"
        "x = torch.arange(6, dtype=torch.float32, device='mux').reshape(2, 3)\n"
        "print(x.device.type, (x @ x.T).cpu().tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gt_runtime", "run", str(script)],
        capture_output=True, text=True, timeout=START_SECONDS, env=environment(GT_WORKERS="1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mux [[5.0, 14.0], [14.0, 50.0]]\n"
