"""Threads that share the blocks of a kernel."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from topomask.ops import backend
from topomask.ops.backend import run_blocks


@pytest.fixture(autouse=True)
def _restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def sleepy(start: int, stop: int, calls: list, seconds: float = 0.01) -> None:
    """A stand-in for a kernel, which releases Python's lock too."""
    time.sleep(seconds)
    calls.append((start, stop, threading.get_ident()))


def blocks_of(calls: list) -> list[int]:
    return sorted(block for start, stop, _ in calls for block in range(start, stop))


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("num_blocks", [0, 1, 2, 5, 64])
def test_every_block_is_done_once_by_as_many_threads_as_torch_has(num_threads, num_blocks):
    torch.set_num_threads(num_threads)
    calls: list = []
    run_blocks(sleepy, num_blocks, (calls,))
    assert blocks_of(calls) == list(range(num_blocks))
    assert len({thread for _, _, thread in calls}) == max(1, min(num_threads, num_blocks))


def test_threads_work_at_the_same_time():
    torch.set_num_threads(4)
    together = threading.Barrier(4, timeout=60)
    run_blocks(lambda start, stop: together.wait(), 4, ())
    assert not together.broken


def test_calls_from_several_threads_do_not_wait_for_each_other_and_share_the_workers():
    torch.set_num_threads(3)
    most, at_work, lock = 0, set(), threading.Lock()

    def kernel(start, stop, calls):
        nonlocal most
        with lock:
            at_work.add(threading.get_ident())
            most = max(most, len(at_work))
        time.sleep(0.01)
        with lock:
            at_work.remove(threading.get_ident())
        calls.extend(range(start, stop))

    def caller(_):
        calls: list = []
        for _ in range(5):
            run_blocks(kernel, 6, (calls,))
        return sorted(calls)

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(caller, range(4)):
            assert found == sorted(list(range(6)) * 5)
    # Four callers, and the two workers that one of them would have alone.
    assert most <= 6
    assert len(backend._idle) == backend._num_workers


@pytest.mark.parametrize("place", ["caller", "worker"])
def test_an_error_is_raised_once_all_threads_are_done(place):
    torch.set_num_threads(2)
    done = []

    def kernel(start, stop):
        time.sleep(0.01)
        if (start == 0) == (place == "caller"):
            raise ZeroDivisionError(place)
        time.sleep(0.05)
        done.append(start)

    with pytest.raises(ZeroDivisionError, match=place):
        run_blocks(kernel, 2, ())
    assert len(done) == 1
    calls: list = []
    run_blocks(sleepy, 2, (calls,))
    assert blocks_of(calls) == [0, 1]
    assert len({thread for _, _, thread in calls}) == 2


def test_an_interrupted_caller_leaves_its_workers_behind():
    torch.set_num_threads(2)
    finish, calls = threading.Event(), []

    def kernel(start, stop):
        if start == 0:
            raise KeyboardInterrupt
        finish.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        # As if Ctrl-C came again while the caller waits.
        patch.setattr(backend._Worker, "wait", lambda self: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run_blocks(kernel, 2, ())
    run_blocks(sleepy, 2, (calls,))
    assert len({thread for _, _, thread in calls}) == 2
    finish.set()


def _in_child(queue) -> None:
    torch.set_num_threads(2)
    calls: list = []
    run_blocks(sleepy, 4, (calls,))
    queue.put((blocks_of(calls), len({thread for _, _, thread in calls})))


# The child does nothing that a lock of another thread could stop.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_has_threads_of_its_own():
    torch.set_num_threads(2)
    run_blocks(sleepy, 2, ([],))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == ([0, 1, 2, 3], 2)
    child.join(60)
    assert child.exitcode == 0
