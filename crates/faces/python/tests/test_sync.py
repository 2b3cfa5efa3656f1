"""Locks, semaphores, barriers and conditions between processes of a host."""

import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import farpage as fp


def begin(code):
    """A process that runs `code`, and has said so far that it is there."""
    run = [sys.executable, "-c", f"import farpage as fp, sys\n{code}\nsys.stdin.read()"]
    process = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    return process


def end(process):
    out, _ = process.communicate()
    assert process.returncode == 0
    return out


THERE = "print('there', flush=True)"


def test_one_process_at_a_time_has_a_lock(host):
    shm = fp.SharedMemory("count", create=True, size=8)
    count = np.ndarray(1, "i8", buffer=shm.buf)
    code = f"""
import numpy as np
shm = fp.SharedMemory("count")
count, lock = np.ndarray(1, "i8", buffer=shm.buf), fp.Lock("of the count")
{THERE}
for _ in range(2000):
    with lock:
        count[0] = count[0] + 1
"""
    others = [begin(code) for _ in range(2)]
    lock = fp.Lock("of the count")
    for _ in range(2000):
        with lock:
            count[0] = count[0] + 1
    assert [end(other) for other in others] == ["", ""]
    assert count[0] == 6000 and not lock.locked()


def test_who_takes_it_after_a_process_that_was_killed_is_told(host):
    other = begin(f"lock = fp.Lock('x'); lock.acquire(); {THERE}")
    lock = fp.Lock("x")
    assert lock.locked() and not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=0.01)
    other.kill()
    other.wait()
    with pytest.raises(fp.HolderDied, match="may be half changed"):
        with lock:
            raise AssertionError("it is not had")
    assert not lock.locked()
    assert lock.acquire() and lock.holder_died
    lock.consistent()
    lock.release()
    with lock:
        assert not lock.holder_died


def test_a_killed_parent_of_a_child_of_fork_has_died(host):
    code = f"""
import os
lock = fp.Lock("x")
lock.acquire()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
{THERE}
"""
    parent = begin(code)
    parent.kill()
    lock = fp.Lock("x")
    assert lock.acquire() and lock.holder_died
    parent.communicate()


def test_a_child_of_fork_is_a_process_of_its_own(host):
    lock = fp.Lock("x")
    lock.acquire()
    child = os.fork()
    if child == 0:
        refused = False
        try:
            lock.release()
        except fp.LockError:
            refused = True
        os._exit(0 if refused and not lock.acquire(False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()


def test_a_semaphore_has_so_many_places_for_all_processes(host):
    slots = fp.Semaphore("slots", 2)
    other = begin(f"slots = fp.Semaphore('slots', 2); slots.acquire(); {THERE}")
    with slots:
        assert not slots.acquire(blocking=False) and not slots.acquire(timeout=0.01)
    other.kill()
    other.wait()
    assert slots.acquire() and slots.acquire()
    slots.release(2)
    with pytest.raises(fp.LockError, match="a semaphore of 2 is not this caller's"):
        slots.release()


def test_all_come_to_a_barrier_before_any_goes_on(host):
    code = f"""
step = fp.Barrier("step", 2)
{THERE}
print(sorted(step.wait() for _ in range(3)))
"""
    other = begin(code)
    step = fp.Barrier("step", 2)
    own = [step.wait() for _ in range(3)]
    assert set(own) <= {0, 1}
    other.kill()
    other.communicate()
    with pytest.raises(threading.BrokenBarrierError, match="a party of it died"):
        step.wait()
    step.reset()
    with pytest.raises(fp.BrokenBarrier):
        step.wait(timeout=0.01)


def test_a_condition_is_waited_for(host):
    shm = fp.SharedMemory("flag", create=True, size=8)
    code = f"""
shm = fp.SharedMemory("flag")
changed = fp.Condition(fp.Lock("of the flag"))
{THERE}
with changed:
    print(changed.wait_for(lambda: shm.buf[0] == 1))
"""
    other = begin(code)
    changed = fp.Condition(fp.Lock("of the flag"))
    with changed:
        assert not changed.wait(timeout=0.01)
        assert not changed.wait_for(lambda: shm.buf[0] == 2, timeout=0.01)
        shm.buf[0] = 1
        changed.notify_all()
    assert end(other) == "True\n"


def test_who_waits_is_interrupted(host):
    other = begin(f"lock = fp.Lock('x'); lock.acquire(); {THERE}")
    code = f"""
lock = fp.Lock("x")
try:
    {THERE}
    lock.acquire()
except KeyboardInterrupt:
    print("interrupted")
"""
    waits = begin(code)
    waits.send_signal(signal.SIGINT)
    assert end(waits) == "interrupted\n"
    assert end(other) == ""


def test_what_makes_no_sense_is_refused(host):
    lock = fp.Lock("x")
    with pytest.raises(fp.LockError, match="a lock is not this caller's"):
        lock.release()
    with pytest.raises(RuntimeError, match="a lock is not this caller's"):
        fp.Condition(lock).notify()
    with lock, pytest.raises(fp.LockError, match="has the lock already"):
        lock.acquire()
    for wrong, why in [
        (lambda: fp.Lock(""), "no name"),
        (lambda: fp.Lock(None), "no name"),
        (lambda: fp.Lock("x", replicas=3), "give 1 or 2"),
        (lambda: fp.Lock("a/b"), "no name"),
        (lambda: fp.Barrier("b", 0), "from 1 to 4096"),
        (lambda: fp.Semaphore("s", 5000), "from 1 to 4096"),
        (lambda: fp.Condition(threading.Lock()), "give a farpage.Lock"),
        (lambda: lock.acquire(blocking=False, timeout=1), "does not wait"),
        (lambda: lock.acquire(timeout=-2), "-1 for no limit"),
    ]:
        with pytest.raises(fp.ArgumentError, match=why):
            wrong()
    slots = fp.Semaphore("s", 2)
    with pytest.raises(fp.Exists, match="a semaphore of 2, and not a semaphore of 3"):
        fp.Semaphore("s", 3)
    with slots:
        pass


def test_it_is_pickled_by_its_name(host):
    lock = fp.Lock("x")
    condition = pickle.loads(pickle.dumps(fp.Condition(lock)))
    with lock, pytest.raises(fp.LockError, match="already"):
        condition.acquire()
    assert pickle.loads(pickle.dumps(fp.Barrier("b", 3))).parties == 3
    pickle.loads(pickle.dumps(fp.Semaphore("s", 3))).acquire()
