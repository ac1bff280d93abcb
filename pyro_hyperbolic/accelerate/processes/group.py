"""Several processes: the group that torchrun started, and what to do when it is stopped."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_FROM_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TorchrunProcess(NamedTuple):
    """Which of ``world`` processes this one is, and where it computes."""

    rank: int
    world: int
    device: torch.device


def torchrun_process(device: str | torch.device = "cpu") -> TorchrunProcess:
    """This process among those that ``torchrun`` started, for work that needs no communication.

    :param device: ``"cpu"`` or ``"cuda"``; each process takes the GPU of its number on the machine.
    """
    missing = [name for name in _FROM_TORCHRUN if name not in os.environ]
    if missing:
        raise ValueError(
            f"this process is not one of several: {', '.join(missing)} not set in the environment; start the program"
            " with `torchrun --nproc-per-node N`."
        )
    own = torch.device(device)
    if own.type == "cuda":
        index, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if index >= count:
            raise ValueError(
                f"process {index} of this machine has no GPU: there are {count}; start at most {count} processes."
            )
        torch.cuda.set_device(index)
        own = torch.device("cuda", index)
    return TorchrunProcess(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), own)


@contextlib.contextmanager
def process_group(device: str | torch.device = "cpu", timeout: float = 60.0) -> Iterator[TorchrunProcess]:
    """Join the processes that ``torchrun`` started, by NCCL on CUDA devices and by gloo elsewhere.

    :param device: as for :func:`torchrun_process`, whose value it yields.
    :param timeout: seconds after which a process that does not answer counts as lost. It has to cover the longest
        work that only some of the processes do. (torch's default is half an hour.)
    """
    if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be positive, got {timeout!r}.")
    place = torchrun_process(device)
    backend = "nccl" if place.device.type == "cuda" else "gloo"
    with lost_processes():
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    failed = True
    try:
        yield place
        failed = False
    finally:
        # NCCL would wait for processes that are gone.
        if not (failed and backend == "nccl"):
            dist.destroy_process_group()


@contextlib.contextmanager
def lost_processes() -> Iterator[None]:
    """Raise ``ConnectionError`` where a collective operation fails because another process is gone or silent."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors, which name it, or the state of the connection.
        if isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "onnection", "imed out")):
            reason = str(error).splitlines()[0].split(". ")[0]
            raise ConnectionError(f"another process of the group has ended or does not answer ({reason})") from error
        raise


@contextlib.contextmanager
def call_on_sigterm(function: Callable[[], Any]) -> Iterator[None]:
    """Call a function and exit with status 1 as soon as the process is asked to terminate (SIGTERM).

    Torchrun asks the other processes so when one has ended. The main thread may then be waiting for it in a collective
    operation, where Python would not run a handler of its own.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def watch() -> None:
        for number in iter(lambda: ours.recv(1), b""):
            if number[0] == signal.SIGTERM:
                function()
                os._exit(1)

    # Python's own handler, in C, writes the number of a signal to the socket at once, whatever the main thread does.
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    descriptor = signal.set_wakeup_fd(theirs.fileno())
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, handler)
        theirs.close()
        thread.join()
        ours.close()
