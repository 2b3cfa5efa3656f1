"""Locks, semaphores, barriers and conditions between processes of a host, and of all hosts of a cluster."""

import time

from . import _farpage, errors
from ._shared import share_over_fork, talking


def _named(kind, what, name, *numbers, replicas):
    """What has this name, and the memory that it lies in: who keeps that has it in a child of fork, too."""
    if not isinstance(name, str) or not name:
        raise errors.ArgumentError(f"name: {name!r} is no name of a {what}; give a text")
    if replicas not in (1, 2):
        raise errors.ArgumentError(f"replicas: {replicas!r}; give 1 or 2")
    with talking:
        own, memory = kind.named(name, *numbers, replicas)
    share_over_fork(f"{what}.{name}", memory)
    return own, memory


def _count(what, number):
    if not isinstance(number, int) or not 1 <= number <= 4096:
        raise errors.ArgumentError(f"{what}: {number!r}; give a number from 1 to 4096")
    return number


def _limit(blocking, timeout):
    """Seconds to wait at most, from what `threading` takes; None is for ever."""
    if timeout is None or timeout == -1:
        return None if blocking else 0.0
    if not blocking:
        raise errors.ArgumentError("timeout: there is none for who does not wait; give blocking=True")
    try:
        seconds = float("nan" if isinstance(timeout, (str, bytes)) else timeout)
    except (TypeError, ValueError, OverflowError):
        seconds = float("nan")
    if not seconds >= 0:
        raise errors.ArgumentError(f"timeout: {timeout!r}; give seconds, or -1 for no limit")
    return seconds


class Lock:
    """A lock by name, which one thread at a time has, of all processes of all hosts: used as
    `threading.Lock` is.

    It is of the cluster that the host kernel belongs to, else of the host, and there as long as some
    process has it open. `replicas=2`: it outlives any host that dies.

    Only the thread that took it gives it back, and it does not take it twice: both raise `LockError`.
    When a process dies that has it, whoever waits gets it: `with` raises `HolderDied`, without having it,
    since what it guards may be half changed. `acquire` takes it, and `holder_died` is true then: who
    has put that right calls `consistent`.

    >>> lock = fp.Lock("table")
    >>> with lock:
    ...     pass
    """

    def __init__(self, name, *, replicas=1):
        self._own, self._memory = _named(_farpage.Mutex, "lock", name, replicas=replicas)
        self._again = (Lock, (name,))
        self._holder_died = False

    @classmethod
    def _in(cls, memory, offset, again):
        """One that lies in an array, and how to find it again."""
        lock = cls.__new__(cls)
        lock._own, lock._memory = _farpage.Mutex.at(memory, offset), memory
        lock._again, lock._holder_died = again, False
        return lock

    def acquire(self, blocking=True, timeout=-1):
        """Takes it. False: another has it, and the time is over."""
        died = self._own.acquire(_limit(blocking, timeout))
        if died is None:
            return False
        self._holder_died = died
        return True

    def release(self):
        """Gives it back."""
        self._own.release()

    def locked(self):
        """True when some process has it."""
        return self._own.is_held()

    @property
    def holder_died(self):
        """For who has it: a process died that had it, and nobody has said `consistent` since."""
        return self._holder_died

    def consistent(self):
        """What a process that died left half done is put right."""
        self._own.is_right_again()
        self._holder_died = False

    def __enter__(self):
        self.acquire()
        if self._holder_died:
            self.release()
            raise errors.HolderDied(
                "a process died that had the lock, and what it guards may be half changed; acquire() it, "
                "put that right, call consistent(), and release() it"
            )
        return True

    def __exit__(self, *_):
        self.release()

    def __reduce__(self):
        return self._again


class Condition:
    """What threads of all hosts wait for that have a lock, used as `threading.Condition` is: that somebody
    says that something has changed. It belongs to the lock, and lies beside it.

    `notify` wakes all who wait, as `notify_all` does: each looks whether it is what it waited for.

    >>> changed = fp.Condition(fp.Lock("table"))
    >>> with changed:
    ...     changed.wait_for(lambda: True)
    True
    """

    def __init__(self, lock):
        if not isinstance(lock, Lock):
            raise errors.ArgumentError(f"lock: {lock!r} is none of Farpage's; give a farpage.Lock")
        self._lock = lock

    def acquire(self, blocking=True, timeout=-1):
        """As `acquire` of the lock."""
        return self._lock.acquire(blocking, timeout)

    def release(self):
        """As `release` of the lock."""
        self._lock.release()

    def wait(self, timeout=None):
        """Gives the lock back, waits, and takes it again. False: the time was over before.

        Raises `HolderDied`, with the lock, when a process died that had it.
        """
        limit = _limit(True, timeout)
        notified, died = self._lock._own.wait(limit)
        self._lock._holder_died = died
        if died:
            raise errors.HolderDied(
                "a process died that had the lock, and what it guards may be half changed; put that "
                "right, and call consistent() of the lock, which this thread has"
            )
        return notified

    def wait_for(self, predicate, timeout=None):
        """Waits until `predicate()` is true, which it returns; what it last was when the time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n=1):
        """Lets those go on that wait: all of them, whatever `n` is."""
        self._lock._own.notify()

    def notify_all(self):
        """Lets all go on that wait."""
        self._lock._own.notify()

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *_):
        self._lock.release()

    def __reduce__(self):
        return Condition, (self._lock,)


class Semaphore:
    """So many places by name, for processes of all hosts: used as `threading.BoundedSemaphore` is.

    A place is given back by the process that took it. What a process had that died is free again.

    >>> slots = fp.Semaphore("slots", 4)
    >>> with slots:
    ...     pass
    """

    def __init__(self, name, value=1, *, replicas=1):
        value = _count("value", value)
        self._own, self._memory = _named(
            _farpage.Semaphore, "semaphore", name, value, replicas=replicas
        )
        self._again = (name, value)

    def acquire(self, blocking=True, timeout=None):
        """Takes a place. False: there is none, and the time is over."""
        return self._own.acquire(_limit(blocking, timeout))

    def release(self, n=1):
        """Gives places back."""
        for _ in range(_count("n", n)):
            self._own.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()

    def __reduce__(self):
        return Semaphore, self._again


class Barrier:
    """By name: so many threads of all hosts come to it before any of them goes on. Used as
    `threading.Barrier` is.

    It is broken (`BrokenBarrier`) by who does not wait any longer, and by a party that died after it had
    been there before. One that died before it ever came is not known: give a `timeout`.

    >>> step = fp.Barrier("step", 1)
    >>> step.wait()
    0
    """

    def __init__(self, name, parties, *, replicas=1):
        self.parties = _count("parties", parties)
        self._own, self._memory = _named(
            _farpage.Barrier, "barrier", name, parties, replicas=replicas
        )
        self._again = (name, parties)

    def wait(self, timeout=None):
        """Waits for all; a number from 0 on that no other of them gets."""
        return self._own.wait(_limit(True, timeout))

    def abort(self):
        """Breaks it."""
        self._own.abort()

    def reset(self):
        """Breaks it for who waits, and makes it as new."""
        self._own.reset()

    def __reduce__(self):
        return Barrier, self._again
