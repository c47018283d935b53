"""The process that worker processes are forked from: it has imported torch, so that they start at once.

Imports no torch itself, so that a command can start the server first and then import what it needs meanwhile.
"""

import multiprocessing
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext

# Everything that a run imports. The server only imports: after a computation its threads would be missing in the
# workers, and CUDA cannot be used after a fork. `torch._dynamo` is what the first optimizer imports.
_MODULES = ["domainwise.sweeps.local_engine", "torch._dynamo", "torchvision", "filelock", "safetensors.torch"]


def worker_context() -> BaseContext:
    """Return the context that starts worker processes: the fork server on Linux, otherwise new interpreters."""
    return multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def start_fork_server() -> None:
    """Start the server if it is not running, and return without waiting for it. It ends when this process ends."""
    if sys.platform != "linux":
        return
    multiprocessing.get_context("forkserver").set_forkserver_preload(_MODULES)
    # Ctrl-C and a closed terminal reach the whole process group, and would end the server. Blocked signals stay blocked
    # in the process that is started; here, they are delivered right afterwards. The tracker, which the server needs,
    # starts first because it unblocks them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
