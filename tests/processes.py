"""Commands in separate processes that don't import everything again.

`python -m tests.processes` imports the libraries once, for all processes that run tests side by
side, and then forks for each command. A forked process runs a module as `python -m` does, or
several of them as `torchrun` does, with its own standard streams, arguments and environment.
Importing PyTorch, transformers and Hydra takes five seconds of processor time; a fork takes none.
The project's own modules are imported by each command, in its order.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "GCD_TESTS_FORKS_AT"
"""Names the variable with the path of the socket, which all processes that run tests share."""
OWNER = "GCD_TESTS_FORKS_FOR"
"""Names the variable with the id of the process that lives as long as the tests do."""
_LIBRARIES = (
    "hydra.main",
    "lark",
    "matplotlib.figure",
    "pandas",
    "regex",
    "safetensors.torch",
    "scipy.stats",
    "torch.distributed",
    "transformers.models.llama.modeling_llama",
    "wandb",
    "wandb.sdk.launch.inputs.internal",  # which the first run of a process imports
)


def run(
    *program: str, count: int = 1, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as `python` would, or as `torchrun` with several processes would.

    Args:
        program: `-m`, a module and its arguments; or the path of a script and its arguments.
        count: number of processes; each gets its rank. When one fails, the others are ended.
        cwd: working directory.
        environment: variables that differ from those of the tests.
    """
    with tempfile.TemporaryDirectory() as folder, _connection() as server:
        order = {
            "program": program,
            "count": count,
            "cwd": str(cwd),
            "environment": {**_own_environment(), **environment},
            "folder": folder,
        }
        server.sendall((json.dumps(order) + "\n").encode())
        code = json.loads(server.makefile().readline())
        out, err = (
            "".join((Path(folder) / f"{rank}.{name}").read_text("utf-8") for rank in range(count))
            for name in ("out", "err")
        )
    return subprocess.CompletedProcess(program, code, out, err)


def _own_environment() -> dict[str, str]:
    """Return the variables of the tests, without those of pytest."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**own, "PYTHONPATH": str(ROOT)}


def hub() -> Path:
    """Return the folder that commands take for the cache of the hub."""
    return Path(os.environ[ADDRESS] + ".hub")


def _connection() -> socket.socket:
    """Connect to the process that forks, and start it if nobody has."""
    path = os.environ[ADDRESS]
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _connected(path)
        except FileNotFoundError:
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.processes", path],
                cwd=ROOT,
                env={
                    **_own_environment(),
                    "OMP_NUM_THREADS": "1",
                    "HF_HUB_OFFLINE": "1",
                    "HF_HUB_CACHE": str(hub()),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            assert server.stdout is not None
            server.stdout.readline()  # it listens
            return _connected(path)


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _serve(path: str) -> None:
    """Fork for each connection, which gives one command, until the tests' first process ends."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # no command looks for garbage among the libraries
    tests = int(os.environ[OWNER])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        while _lives(tests):
            if select.select([listener], [], [], 1)[0]:
                connection, _ = listener.accept()
                if not os.fork():
                    listener.close()
                    _answer(connection)
                connection.close()
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answer(connection: socket.socket) -> NoReturn:
    """Run the command that is read, and answer with its exit status."""
    try:
        order = json.loads(connection.makefile().readline())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        running = {_fork(order, rank, port) for rank in range(order["count"])}
        code = 0
        while running:
            pid, status = os.wait()
            running.remove(pid)
            if status and not code:
                code = os.waitstatus_to_exitcode(status)
                for other in running:
                    os.kill(other, signal.SIGTERM)
        connection.sendall(f"{code}\n".encode())
    finally:
        os._exit(0)


def _fork(order: dict[str, Any], rank: int, port: int) -> int:
    """Run a command in a fork, whose process id is returned."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become(order, rank, port)
        module, *arguments = order["program"]
        if module == "-m":
            module, *arguments = arguments
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [module, *arguments]
            runpy.run_path(module, run_name="__main__")
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # as an interpreter does that ends in order
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(order: dict[str, Any], rank: int, port: int) -> None:
    """Take on the environment, working directory and standard streams of a command."""
    os.environ.clear()
    os.environ.update(order["environment"])
    if order["count"] > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(order["count"]),
            LOCAL_WORLD_SIZE=str(order["count"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    os.chdir(order["cwd"])
    streams = [os.open(os.devnull, os.O_RDONLY)]
    for name in ("out", "err"):
        path = Path(order["folder"]) / f"{rank}.{name}"
        streams.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))


if __name__ == "__main__":
    _serve(sys.argv[1])
