"""Process groups, lost processes, and what is done at the end."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pyro_hyperbolic.accelerate import TorchrunProcess, call_on_sigterm, process_group, torchrun_process
from pyro_hyperbolic.accelerate.processes import group as module
from pyro_hyperbolic.accelerate.processes.group import lost_processes


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun sets for the only process of a job; port 0 is any that is free."""
    values = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_group_is_joined_and_left() -> None:
    with process_group(timeout=7.0) as place:
        assert place == TorchrunProcess(0, 1, torch.device("cpu"))
        assert dist.get_backend() == "gloo"
        assert dist.group.WORLD is not None
        assert dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds() == 7
    assert not dist.is_initialized()


@pytest.mark.usefixtures("environment")
def test_group_is_left_after_an_error() -> None:
    with pytest.raises(KeyError), process_group():
        raise KeyError
    assert not dist.is_initialized()


def test_place_needs_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"RANK.* not set in the environment; start the program with `torchrun"):
        torchrun_process()
    with pytest.raises(ValueError, match="RANK"), process_group():
        pass


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("timeout", [0, math.nan, "a minute"])
def test_timeout_must_be_positive(timeout: Any) -> None:
    with pytest.raises(ValueError, match=f"timeout must be positive, got {timeout!r}"), process_group(timeout=timeout):
        pass


@pytest.mark.usefixtures("environment")
def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="process 2 of this machine has no GPU: there are 2"):
        torchrun_process("cuda")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer. Check the logs."),
        RuntimeError("Timed out waiting 4000ms for recv operation to complete"),
        dist.DistBackendError("NCCL error"),
        dist.DistNetworkError("no route"),
    ],
)
def test_lost_processes_are_named(error: Exception) -> None:
    message = "another process of the group has ended or does not answer"
    with pytest.raises(ConnectionError, match=message) as raised, lost_processes():
        raise error
    assert "logs" not in str(raised.value)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ValueError("Connection")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), lost_processes():
        raise error


def test_termination_is_answered_whatever_the_main_thread_does() -> None:
    # Only this module: importing the package would take most of the test's time. A mutex that is locked twice waits for
    # ever in C, as a collective operation may, where Python does not run handlers.
    program = (
        "import ctypes, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('processes', {module.__file__!r})\n"
        "processes = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(processes)\n"
        "mutex, lock = ctypes.create_string_buffer(128), ctypes.CDLL(None).pthread_mutex_lock\n"
        "with processes.call_on_sigterm(lambda: print('stopped', flush=True)):\n"
        "    lock(mutex)\n"
        "    print('ready', flush=True)\n"
        "    lock(mutex)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 1
            assert process.stdout.read() == "stopped\n"
        finally:
            process.kill()


def test_signals_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    called = []
    with call_on_sigterm(lambda: called.append(1)):
        assert signal.getsignal(signal.SIGTERM) is not before
        os.kill(os.getpid(), signal.SIGCHLD)  # another signal is none of its business
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert not called
