"""One process, or several that ``torchrun`` started: device, share of the work, signals and random state."""

from __future__ import annotations

import atexit
import base64
import gc
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from topomask.train.checkpoint import digest
from topomask.train.config import Precision

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from the one with this device and rank; rank 0 writes all files."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def shard(self, data: _Value) -> _Value:
        """The part of the data for this process."""
        if self.world_size == 1 or data is None:
            return data
        shard = getattr(data, "shard", None)
        if shard is None:
            raise ValueError(
                f"With {self.world_size} processes, data must have a method shard(rank, world_size), but "
                f"{type(data).__name__} has none. Use topomask.data.Batches, or add the method."
            )
        return shard(self.rank, self.world_size)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model, so that gradients are averaged over processes."""
        if self.world_size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def check_equal(self, model: nn.Module) -> None:
        """Raise a RuntimeError unless all processes built the same model, walks included."""
        if self.world_size == 1:
            return
        found = digest({name: value.cpu() for name, value in model.state_dict().items() if isinstance(value, Tensor)})
        if len(set(self.gather(found))) > 1:
            raise RuntimeError(
                f"The {self.world_size} processes built different models. `build` must only draw random numbers from "
                "torch's generator, which is seeded before the call, or use fixed seeds."
            )

    def agree(self, length: int) -> int:
        """Check that all processes have the same number of batches per epoch, since they wait for each other."""
        lengths = self.gather(length)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"The {self.world_size} processes must have equally many batches per epoch, but have {lengths}: the "
                "last batch is too small to share. Change the batch size, or drop that batch with "
                "Batches(..., drop_last=True) or GraphBatches(..., min_graphs=2)."
            )
        return length

    def add_up(self, sums: dict[str, float], count: int) -> tuple[dict[str, float], int]:
        """Add up sums and a count over all processes."""
        if self.world_size == 1:
            return sums, count
        # A process without a batch does not know the names.
        names = sorted({name for part in self.gather(list(sums)) for name in part})
        values = torch.tensor([count, *(sums.get(name, 0.0) for name in names)], dtype=torch.float64)
        total, *rest = self.reduce(values).tolist()
        return dict(zip(names, rest, strict=True)), round(total)

    def reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes."""
        if self.world_size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest value of all processes."""
        if self.world_size == 1:
            return value
        found = torch.tensor(value, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def gather(self, value: _Value) -> list[_Value]:
        """The values of all processes, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def first(self, answer: Callable[[], _Value]) -> _Value:
        """Call a function in the first process only, and share its result, or its error, with all."""
        if self.world_size == 1:
            return answer()
        values: list[Any] = [None, None]
        if self.is_first:
            try:
                values[0] = answer()
            except Exception as error:
                # Raised below, after the broadcast: the others would wait for it forever.
                values[1] = error
        dist.broadcast_object_list(values, src=0)
        found, failure = values
        # An error keeps the frames it went through alive, and these would keep the error alive.
        del values
        try:
            if failure is not None:
                raise failure
        finally:
            del failure
        return found


def join_processes(device: str = "auto") -> Processes:
    """Join the processes that ``torchrun`` started, as its environment variables say, or run in one process.

    Args:
        device: ``"auto"``, ``"cpu"``, or ``"cuda"``, for which every process takes its own GPU.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("`device` is 'cuda', but torch finds no CUDA device. Pass 'cpu' or 'auto'.")
    try:
        where = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device)
    except RuntimeError:
        raise ValueError(f"`device` must be a torch device, such as 'cpu' or 'cuda', but is {device!r}.") from None
    if where.type == "cuda":
        torch.cuda.set_device(where)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Processes(where)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
        # Once per process: one that left and joined again would find stale addresses.
        atexit.register(_leave)
    return Processes(where, rank, world_size)


def _leave() -> None:
    """Leave the process group, after freeing the models that still use it."""
    gc.collect()
    dist.destroy_process_group()


class HeldSignals:
    """Holds back SIGINT and SIGTERM, so that a run can save first; a second signal ends the process at once.

    Works in the main thread only, where Python handles signals. Ignored signals stay ignored.
    """

    def __init__(self) -> None:
        # The signal that arrived, or 0.
        self.number = 0
        self._handlers: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> HeldSignals:
        self._hold()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.number and kind is None:
            self.deliver(self.number)
        self._release()

    def deliver(self, number: int) -> None:
        """Do what the signal would have done; if the user's handler returns, hold signals again."""
        handler = self._handlers.get(number, signal.SIG_DFL)
        self._release()
        if not callable(handler):
            # The exit status that shells report for a process ended by a signal.
            raise SystemExit(128 + number)
        handler(number, None)
        self._hold()

    def _hold(self) -> None:
        self.number = 0
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            # None: a handler that was not set from Python.
            if handler not in (signal.SIG_IGN, None):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _release(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A process forked meanwhile, such as a worker of a pool, has nothing to save.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = number
        # The system handles the next signal at once; Python would wait for a long product to finish.
        for each in self._handlers:
            signal.signal(each, signal.SIG_DFL)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise a ValueError if the device does not support a precision."""
    on_cuda = precision == "bfloat16" and device.type == "cuda"
    if on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ValueError("`precision` is 'bfloat16', but this CUDA device does not support it. Pass 'float32'.")


def seed_everything(*seed: int) -> None:
    """Seed torch, NumPy and Python from one or several integers."""
    words = np.random.SeedSequence(seed).generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(int(words[2]))  # noqa: NPY002
    random.seed(int(words[3]))


def random_state() -> dict[str, Any]:
    """The state of all generators, as JSON."""
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, words, next_gauss = random.getstate()
    return {
        "torch": _encode(torch.get_rng_state()),
        "cuda": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else None,
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), next_gauss],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore the generators from :func:`random_state`; raise a ValueError if the state is invalid."""
    try:
        torch.set_rng_state(_decode(state["torch"]))
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(_decode(state["cuda"]))
        keys, position, has_gauss, gauss = state["numpy"]
        # NumPy does not check the position, and would read out of bounds.
        if not 0 <= position <= len(keys):
            raise ValueError(f"position {position} of {len(keys)}")
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
        version, words, next_gauss = state["python"]
        random.setstate((version, tuple(words), next_gauss))
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"its random state cannot be restored ({error})") from None


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
