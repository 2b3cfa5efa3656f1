"""Registrations that are found again."""

import ctypes
import errno
import gc
import mmap
import os
import struct
import sys
import threading

import numpy as np
import pytest
from harness import until

import farpage as fp

PAGE = 4096
PAGES = 16


class Device:
    """Knows what is registered with it, and refuses what is wrong."""

    def __init__(self, most=100):
        self.registered, self.made, self.most = {}, 0, most
        self.lock = threading.Lock()

    def register(self, address, size):
        with self.lock:
            if len(self.registered) == self.most:
                raise OSError(errno.ENOSPC, "the device is full")
            assert address % PAGE == 0 and size % PAGE == 0
            self.made += 1
            self.registered[self.made] = (address, size)
            return self.made

    def deregister(self, address, size, token):
        with self.lock:
            assert self.registered.pop(token) == (address, size)

    def cache(self, **limits):
        return fp.Registrations(self.register, self.deregister, **limits)


@pytest.fixture
def memory():
    """Mapped for this test alone: what goes away during another test would be seen there, and what is being
    registered then be registered once more."""
    mapped = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE)
    yield mapped
    # What a caught exception has is in a circle.
    gc.collect()
    mapped.close()


def piece(memory, page, size=PAGE):
    return memoryview(memory)[page * PAGE : page * PAGE + size]


def test_what_is_registered_is_found_again_and_parts_of_it_too(memory):
    device = Device()
    with device.cache() as cache:
        array = np.frombuffer(memory, "u1")
        with cache.get(array[5 : 5 + 2 * PAGE]) as first:
            assert (first.token, first.is_gone, first.is_held) == (1, False, True)
            start, end = first.range
            assert (start, end) == (array.ctypes.data, array.ctypes.data + 3 * PAGE)
            with cache.get(array[PAGE:][:7]) as inner:
                assert inner.token == 1
        assert cache.get(array[: 3 * PAGE]).token == 1
        assert cache.stats() == {"regions": 1, "bytes": 3 * PAGE, "made": 1, "evicted": 0, "gone": 0}
        assert device.registered == {1: (start, 3 * PAGE)}
    assert device.registered == {} and device.made == 1


def test_what_overlaps_is_one_region_and_the_old_one_stays_while_it_is_held(memory):
    device = Device()
    cache = device.cache()
    old = cache.get(piece(memory, 0, 3 * PAGE))
    new = cache.get(piece(memory, 1, 3 * PAGE))
    assert old.is_gone and not new.is_gone and new.range[1] - new.range[0] == 4 * PAGE
    assert list(device.registered) == [1, 2]
    cache.put(old)
    old.put()
    assert list(device.registered) == [2]
    with pytest.raises(fp.errors.LockError, match="get it again"):
        _ = old.token
    assert repr(old) == "<farpage.Registered, put back>" and not old.is_held
    # A neighbour with a page in common is one of its own while the other is in use.
    with cache.get(piece(memory, 3, 9 * PAGE)) as next_one:
        assert not new.is_gone and next_one.range[0] == new.range[1] - PAGE
        assert list(device.registered) == [2, 3]
    del new
    cache.close()
    cache.close()
    assert device.registered == {}
    with pytest.raises(fp.errors.LockError, match="was closed; make another"):
        cache.get(memory)


def test_memory_that_is_unmapped_or_discarded_is_registered_anew():
    device = Device()
    with device.cache() as cache:
        mapped = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE)
        with cache.get(mapped) as held:
            with pytest.raises(BufferError):
                mapped.close()
            mapped.madvise(mmap.MADV_DONTNEED, PAGE, PAGE)
            assert held.is_gone and list(device.registered) == [1]
        assert device.registered == {}
        assert cache.get(mapped).token == 2
        mapped.close()
        until(lambda: device.registered == {}, "another thread gives all up")
        assert cache.stats()["gone"] == 2
        # What has the same addresses then is another registration.
        with mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE) as mapped:
            assert cache.get(mapped).token == 3


def test_what_goes_away_unseen_is_forgotten(tmp_path):
    device = Device()
    file = os.memfd_create("registered")
    os.truncate(file, PAGES * PAGE)
    with device.cache() as cache, mmap.mmap(file, PAGES * PAGE) as mapped:
        with cache.get(mapped) as held:
            os.truncate(file, 0)
            os.truncate(file, PAGES * PAGE)
            assert not held.is_gone and cache.get(mapped).token == 1
            cache.forget(piece(mapped, 3, 1))
            assert held.is_gone and list(device.registered) == [1]
        assert cache.get(mapped).token == 2
    os.close(file)


def test_limits_are_kept_and_told(memory):
    device = Device()
    with device.cache(limit="16K") as cache:
        held = [cache.get(piece(memory, 2 * page)) for page in range(4)]
        with pytest.raises(fp.errors.KernelError) as refused:
            cache.get(piece(memory, 8))
        assert "cannot register 4096 bytes more: registrations in use have 16384 bytes of 16384" in str(refused.value)
        held[2].put()
        assert cache.get(piece(memory, 8)).token == 5
        assert cache.stats()["evicted"] == 1 and list(device.registered) == [1, 2, 4, 5]
        with pytest.raises(fp.errors.KernelError, match="20480 bytes in whole pages: this cache has 16384"):
            cache.get(piece(memory, 9, 5 * PAGE))
    with device.cache(regions=2) as cache:
        held = [cache.get(piece(memory, page)) for page in (0, 2)]
        with pytest.raises(fp.errors.KernelError, match="2 of the 2 regions"):
            cache.get(piece(memory, 4))
        held.clear()
        assert cache.get(piece(memory, 4)).is_held


def test_a_full_device_is_asked_again_when_others_were_given_up(memory):
    device = Device(most=2)
    with device.cache() as cache:
        for page in range(0, 12, 2):
            cache.get(piece(memory, page)).put()
        assert list(device.registered) == [5, 6] and cache.stats()["evicted"] == 4
        held = [cache.get(piece(memory, page)) for page in (8, 10)]
        with pytest.raises(OSError, match="the device is full") as refused:
            cache.get(piece(memory, 0))
        assert type(refused.value) is OSError and all(one.is_held for one in held)
    held.clear()
    assert device.registered == {}


def test_what_the_functions_raise_is_raised_or_told(memory, monkeypatch):
    told, device = [], Device()
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def refuses(address, size):
        raise ZeroDivisionError(f"{size} bytes")

    def fails(address, size, token):
        device.deregister(address, size, token)
        raise RuntimeError("cannot let go")

    with fp.Registrations(refuses, device.deregister) as cache:
        with pytest.raises(ZeroDivisionError, match="4096 bytes"):
            cache.get(piece(memory, 0))
        assert cache.stats()["made"] == 0
    for wrong in ("no number", None, -1, 1 << 64):
        with fp.Registrations(lambda *_, wrong=wrong: wrong, device.deregister) as cache:
            with pytest.raises(fp.errors.ArgumentError, match=f"register returned {wrong!r}; have it return"):
                cache.get(piece(memory, 0))
    with fp.Registrations(device.register, fails) as cache:
        cache.get(piece(memory, 0)).put()
    assert device.registered == {} and [str(one.exc_value) for one in told] == ["cannot let go"]


def test_the_functions_use_no_cache_and_what_they_let_go_of_is_put_back(memory):
    device, kept = Device(), []

    def register(address, size):
        with pytest.raises(fp.errors.LockError, match="do it afterwards"):
            cache.get(piece(memory, 4))
        kept.clear()
        gc.collect()
        return device.register(address, size)

    with fp.Registrations(register, device.deregister) as cache:
        loop = [cache.get(piece(memory, 0))]
        loop.append(loop)
        kept.append(loop)
        del loop
        cache.get(piece(memory, 2)).put()
        assert list(device.registered) == [1, 2]
        # What is put back is no longer held.
        cache.forget(memory)
        assert device.registered == {}


def test_several_are_had_at_once_or_none(memory):
    device = Device(most=2)
    with device.cache() as cache:
        array = np.frombuffer(memory, "u1")
        parts = [array[PAGE + 9 :][:PAGE], array[: PAGE + 10], array[8 * PAGE :][:1]]
        held = cache.get_all(iter(parts))
        assert [one.token for one in held] == [1, 1, 2]
        assert held[0].range == held[1].range
        with pytest.raises(OSError, match="full"):
            cache.get_all([array[:PAGE], array[12 * PAGE :][:PAGE]])
        held.clear()
        assert len(cache.get_all([array[12 * PAGE :][:PAGE], array[14 * PAGE :][:PAGE]])) == 2
        assert list(device.registered) == [3, 4]
        assert cache.get_all([]) == []
        with cache.get_all([memory, array[:PAGE]]) as all_of_it:
            assert all(one.is_held for one in all_of_it)
        assert not any(one.is_held for one in all_of_it)


def pinned_kib():
    with open("/proc/self/status") as status:
        return int(status.read().split("VmPin:")[1].split()[0])


def test_without_functions_memory_is_pinned(memory):
    before = pinned_kib()
    with fp.Registrations() as cache:
        with cache.get(memory):
            assert pinned_kib() >= before + PAGES * 4
        assert cache.get(piece(memory, 3)).is_held and cache.stats()["made"] == 1
    assert pinned_kib() == before


def test_the_buffers_of_a_ring_are_registered(memory):
    libc = ctypes.CDLL(None, use_errno=True)
    setup, register, table = 425, 427, struct.pack("=IIQQQ", 2, 1, 0, 0, 0)
    ring = libc.syscall(setup, 1, ctypes.create_string_buffer(120))
    assert ring >= 0 and libc.syscall(register, ring, 15, table, len(table)) == 0
    with fp.Registrations(ring=ring, buffers=2) as cache:
        held = cache.get_all([piece(memory, 0), piece(memory, 2)])
        assert sorted(one.token for one in held) == [0, 1]
        with pytest.raises(fp.errors.KernelError, match="2 of the 2 regions"):
            cache.get(piece(memory, 4))
        with pytest.raises(fp.errors.ArgumentError, match="another cache has them already"):
            fp.Registrations(ring=os.dup(ring), buffers=1)
    held.clear()
    fp.Registrations(ring=ring, buffers=1).close()
    with pytest.raises(fp.errors.ArgumentError, match="its table of buffers is smaller"):
        fp.Registrations(ring=ring, buffers=3)
    with pytest.raises(fp.errors.ArgumentError, match="it is no io_uring"):
        fp.Registrations(ring=0, buffers=3)
    os.close(ring)


def test_what_cannot_be_registered_is_refused(memory, tmp_path):
    device = Device()
    with device.cache() as cache:
        with pytest.raises(fp.errors.ArgumentError, match="not in one piece"):
            cache.get(np.zeros((100, 100))[:, ::2])
        with pytest.raises(fp.errors.ArgumentError, match="give a byte at least"):
            cache.get(b"")
        for ask in (cache.get, cache.forget, lambda wrong: cache.get_all([memory, wrong])):
            with pytest.raises(fp.errors.ArgumentError, match="int has no memory that can be registered"):
                ask(7)
        assert device.made == 0
        with cache.get((ctypes.c_double * 9)()) as held:
            assert held.token == 1
        for shape, dtype, order in (((), "f8", "C"), (3, "M8[s]", "C"), ((30, 40), "f8", "F")):
            value = np.ndarray(shape, dtype, memory, order=order)
            with cache.get(value) as held:
                start, end = held.range
                assert start <= value.ctypes.data and value.ctypes.data + value.nbytes <= end
        np.arange(1 << 17, dtype="i8").tofile(tmp_path / "numbers")
        numbers = fp.open(tmp_path / "numbers", dtype="i8")
        with pytest.raises(fp.errors.Unsupported, match="lock it as an area"):
            cache.get(numbers)
    function = device.register
    for wrong in (
        {"register": function},
        {"register": 1, "deregister": 2},
        {"ring": 3},
        {"buffers": 3},
        {"ring": 3, "buffers": 0},
        {"ring": 3, "buffers": 1, "register": function, "deregister": function},
        {"ring": -1, "buffers": 1},
        {"ring": "x", "buffers": 1},
        {"regions": 0},
        {"regions": "all"},
        {"limit": "no"},
    ):
        with pytest.raises(fp.errors.ArgumentError):
            fp.Registrations(**wrong)


def test_threads_register_and_unmap_at_once():
    device, wrong = Device(), []

    def works(cache, seed):
        random = np.random.default_rng(seed)
        try:
            for _ in range(60):
                with mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE) as mapped:
                    for page in random.integers(0, PAGES, 20):
                        with cache.get(piece(mapped, page)) as held:
                            start, end = held.range
                            with device.lock:
                                address, size = device.registered[held.token]
                            assert (address, address + size) == (start, end)
        except BaseException as error:
            wrong.append(error)

    with device.cache(limit=40 * PAGE, regions=30) as cache:
        threads = [threading.Thread(target=works, args=(cache, seed)) for seed in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert wrong == []
        until(lambda: device.registered == {}, "another thread gives all up")
        stats = cache.stats()
        assert stats["made"] == device.made == stats["gone"] + stats["evicted"]


def test_a_child_of_fork_has_nothing_registered_and_its_parent_all(memory):
    device = Device()
    cache = device.cache()
    held = cache.get(memory)
    child = os.fork()
    if child == 0:
        try:
            assert not held.is_held
            for ask in (cache.stats, lambda: cache.get(memory), lambda: held.token):
                with pytest.raises(fp.errors.LockError, match="parent|not inherited"):
                    ask()
            held.put()
            cache.close()
            assert list(device.registered) == [1]
            with device.cache() as own, own.get(memory) as other:
                assert other.token == 2
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert held.is_held and held.token == 1
    held.put()
    cache.close()
    assert device.registered == {}


def test_all_is_given_up_at_the_end_of_the_interpreter(script):
    done = script(
        """
        import mmap
        import farpage as fp
        made = []

        def register(address, size):
            made.append(size)
            return len(made)

        def deregister(address, size, token):
            print("deregistered", size, token, made)

        memory = mmap.mmap(-1, 10_000, mmap.MAP_PRIVATE)
        cache = fp.Registrations(register, deregister)
        cache.get(memory).put()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "deregistered 12288 1 [12288]\n"
