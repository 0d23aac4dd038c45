"""One process, or one of several that ``torchrun`` started: its device, its part of the work, its random state."""

from __future__ import annotations

import atexit
import base64
import gc
import hashlib
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

from topomask.train.config import Precision

_Answer = TypeVar("_Answer")
_Data = TypeVar("_Data")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them.

    Args:
        device: Where this process runs.
        rank: Its number. Number 0 writes.
        world_size: How many there are.
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def shard(self, data: _Data) -> _Data:
        """The part of the data that this process takes."""
        if self.world_size == 1 or data is None:
            return data
        shard = getattr(data, "shard", None)
        if shard is None:
            raise ValueError(
                f"With {self.world_size} processes, data must have a method shard(rank, world_size), but "
                f"{type(data).__name__} has none."
            )
        return shard(self.rank, self.world_size)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over processes."""
        if self.world_size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def check_equal(self, model: nn.Module) -> None:
        """A RuntimeError unless all processes have built the same model, walks included."""
        if self.world_size == 1:
            return
        digest = hashlib.blake2b(digest_size=8)
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            if isinstance(value, Tensor):
                digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        digests = self.gather(digest.hexdigest())
        if len(set(digests)) > 1:
            raise RuntimeError(
                f"The {self.world_size} processes have built different models. `build` must draw from torch's "
                "generator alone, which is seeded before it is called, or be given seeds."
            )

    def agree(self, length: int) -> int:
        """The number of batches of an epoch, which must be the same in all processes: they wait for each other."""
        lengths = self.gather(length)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"The {self.world_size} processes have {lengths} batches per epoch, since the last one is too small to "
                "share. Change the batch size, or leave it out: Batches(..., drop_last=True), or "
                "GraphBatches(..., min_graphs=2)."
            )
        return length

    def add_up(self, sums: dict[str, float], count: int) -> tuple[dict[str, float], int]:
        """Sums and a count over all processes."""
        if self.world_size == 1:
            return sums, count
        # A process may have had no batch, and then knows no names.
        names = sorted({name for part in self.gather(list(sums)) for name in part})
        values = torch.tensor([count, *(sums.get(name, 0.0) for name in names)], dtype=torch.float64)
        total, *rest = self.reduce(values).tolist()
        return dict(zip(names, rest, strict=True)), round(total)

    def reduce(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.world_size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest of what the processes have."""
        if self.world_size == 1:
            return value
        found = torch.tensor(value, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def gather(self, value: _Answer) -> list[_Answer]:
        """What every process has, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def first(self, answer: Callable[[], _Answer]) -> _Answer:
        """What the first process answers, asked there only; an error there is one in all."""
        if self.world_size == 1:
            return answer()
        values: list[Any] = [None, None]
        if self.is_first:
            try:
                values[0] = answer()
            except Exception as error:
                # Raised below, once the others know: they would wait for an answer that never comes.
                values[1] = error
        dist.broadcast_object_list(values, src=0)
        found, failure = values
        # An error keeps the frames it went through alive, and these would keep it.
        del values
        try:
            if failure is not None:
                raise failure
        finally:
            del failure
        return found


def join_processes(device: str = "auto") -> Processes:
    """Join the processes that ``torchrun`` started, as the environment tells, or be alone.

    Args:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``, on which every process takes its own.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    where = _device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if world_size == 1:
        return Processes(where)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
        # Processes meet once: one that left and joined again would find the addresses of before.
        atexit.register(_leave)
    return Processes(where, rank, world_size)


def _leave() -> None:
    """Leave the other processes: first all models that still hold on to them, and then this process."""
    gc.collect()
    dist.destroy_process_group()


class HeldSignals:
    """Holds back SIGINT and SIGTERM, so that a run can save itself first; a second one ends the process at once.

    In the main thread only, where Python handles signals. Those that are ignored stay ignored.
    """

    def __init__(self) -> None:
        # The signal that came, or 0.
        self.number = 0
        self._handlers: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> HeldSignals:
        self._hold()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        number = self.number
        if number and kind is None:
            self.deliver(number)
        self._release()

    def deliver(self, number: int) -> None:
        """Do what would have been done without this; returns where a handler of the user does, and then holds on."""
        handler = self._handlers.get(number, signal.SIG_DFL)
        self._release()
        if not callable(handler):
            # The status that shells give to a process that a signal ended.
            raise SystemExit(128 + number)
        handler(number, None)
        self._hold()

    def _hold(self) -> None:
        self.number = 0
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            # None is one that was not set from Python.
            if handler not in (signal.SIG_IGN, None):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _release(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # A process that was forked meanwhile, such as a worker of a pool, has nothing to save.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = number
        # By the system, which does not wait until a long product is done.
        for each in self._handlers:
            signal.signal(each, signal.SIG_DFL)


def check_precision(precision: Precision, device: torch.device) -> None:
    """A ValueError where the device has no such precision."""
    if (
        precision == "bfloat16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ValueError("`precision` is 'bfloat16', but this CUDA device does not have it. Pass 'float32'.")


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("`device` is 'cuda', but torch finds none. Pass 'cpu' or 'auto'.")
    try:
        return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name)
    except RuntimeError:
        raise ValueError(f"`device` must be a device of torch, such as 'cpu' or 'cuda', but is {name!r}.") from None


def seed_everything(*seed: int) -> None:
    """Seed torch, NumPy and Python from one or several integers."""
    words = np.random.SeedSequence(seed).generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(int(words[2]))  # noqa: NPY002
    random.seed(int(words[3]))


def random_state() -> dict[str, Any]:
    """The state of all generators, to be kept as JSON."""
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, words, next_gauss = random.getstate()
    return {
        "torch": _encode(torch.get_rng_state()),
        "cuda": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else None,
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), next_gauss],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put all generators back to where :func:`random_state` found them; a ValueError where it did not."""
    try:
        torch.set_rng_state(_decode(state["torch"]))
        if state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(_decode(state["cuda"]))
        keys, position, has_gauss, gauss = state["numpy"]
        # NumPy takes any position, and reads there.
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
