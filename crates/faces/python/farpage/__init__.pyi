from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from multiprocessing.shared_memory import SharedMemory as _SharedMemory
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, SupportsIndex, TypedDict, overload

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import Buffer, Self, TypeVar, Unpack

from . import errors as errors
from .errors import *  # noqa: F403
from .errors import Error as Error

__all__: list[str]
__version__: str

Size = int | str
Mode = Literal["r", "r+", "w+", "c"]
Progress = bool | Callable[[int], object] | None
Path = str | bytes | PathLike[str] | PathLike[bytes]
Where = slice[Any, Any, Any] | range | tuple[int, int] | np.ndarray[Any, Any] | None

class _File(Protocol):
    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def read(self, size: int = ..., /) -> bytes: ...

_Memory = Buffer | np.ndarray[Any, np.dtype[Any]]
Read = Callable[[int, int], Buffer]
Part = Path | tuple[Path] | tuple[Path, Size | None] | tuple[Path, Size | None, Size | None]
Source = Path | _File | Read | Part | Sequence[Part]

class Stats(TypedDict):
    bytes: int
    resident_bytes: int
    reads: int
    read_bytes: int
    written_bytes: int
    failures: int

class _Options(TypedDict, total=False):
    ram: Size | None
    cache: bool | Path | tuple[Path, Size] | None
    on_failure: Literal["error", "wait", "zero"]
    timeout: float | None
    headers: Mapping[str, str] | Iterable[tuple[str, str]] | None
    decompress: bool | None
    record: Path | None
    replay: Path | None

class Object:
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def is_copy(self) -> bool: ...
    @property
    def version(self) -> str | None: ...
    @property
    def closed(self) -> bool: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice[Any, Any, Any]) -> bytes: ...
    @overload
    def __setitem__(self, key: SupportsIndex, value: int) -> None: ...
    @overload
    def __setitem__(self, key: slice[Any, Any, Any], value: Buffer) -> None: ...
    def read(self, start: int, stop: int) -> bytes: ...
    def prefetch(self, where: Where = None, progress: Progress = None) -> int: ...
    def drop(self, where: Where = None) -> None: ...
    def flush(self) -> None: ...
    def pin(self, where: Where = None) -> None: ...
    def unpin(self, where: Where = None) -> None: ...
    def stats(self) -> Stats: ...
    def residency(self) -> list[tuple[int, int]]: ...
    def record(self, path: Path) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

_Shape = TypeVar("_Shape", bound=tuple[Any, ...], default=tuple[Any, ...], covariant=True)
_Type = TypeVar("_Type", bound=np.dtype[Any], default=np.dtype[Any], covariant=True)

class Array(np.ndarray[_Shape, _Type], Generic[_Shape, _Type]):
    object: Object | None
    def flush(self) -> None: ...
    def prefetch(self, progress: Progress = None) -> int: ...

class Arrays(dict[str, Array]):
    object: Object
    def __init__(self, obj: Object, items: Mapping[str, Array]) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def load(
    address: Path | Part | Sequence[Part],
    *,
    dtype: DTypeLike | Literal["stored"] | None = None,
    mode: Literal["r", "r+", "c"] = "r",
    offset: Size | None = None,
    size: Size | None = None,
    eager: bool = False,
    progress: Progress = None,
    **options: Unpack[_Options],
) -> Any: ...
@overload
def open(
    source: Source,
    *,
    dtype: None = None,
    shape: None = None,
    mode: Mode = "r",
    offset: Size | None = None,
    size: Size | None = None,
    eager: bool = False,
    progress: Progress = None,
    **options: Unpack[_Options],
) -> Object: ...
@overload
def open(
    source: Source,
    *,
    dtype: DTypeLike,
    shape: int | Sequence[int] | None = None,
    mode: Mode = "r",
    offset: Size | None = None,
    size: Size | None = None,
    eager: bool = False,
    progress: Progress = None,
    bf16_as_f32: bool = False,
    f16_as_f32: bool = False,
    native: bool = True,
    **options: Unpack[_Options],
) -> Array: ...

class _Far(TypedDict, total=False):
    ram: Size | None
    cache: bool | Path | tuple[Path, Size] | None
    on_failure: Literal["error", "wait", "zero"]
    timeout: float | None
    headers: Mapping[str, str] | Iterable[tuple[str, str]] | None
    decompress: bool | None

class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...

def map_fd(
    source: int | Path | _HasDescriptor,
    offset: Size = 0,
    length: Size | None = None,
    *,
    shared: bool = False,
    dtype: DTypeLike | None = None,
    **options: Unpack[_Far],
) -> np.ndarray[Any, np.dtype[Any]]: ...

def fopen(file: Path | SupportsIndex, mode: str = "r") -> BufferedIOBase: ...

class Stream(BufferedIOBase):
    name: str | int
    mode: str
    def __iter__(self) -> Iterator[bytes]: ...  # type: ignore[override]
    def peek(self, size: int = 0) -> bytes: ...
    closed: bool  # type: ignore[assignment]
    def fmap(self, size: Size = 0) -> np.ndarray[Any, np.dtype[np.uint8]]: ...

class Locked:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def is_locked(self) -> bool: ...
    @property
    def range(self) -> tuple[int, int]: ...
    def check(self) -> None: ...
    def frames(self) -> list[int]: ...
    def blocks(self, most: int | None = None) -> list[tuple[int, int]]: ...
    def unlock(self) -> None: ...

def lock_area(memory: _Memory, *, pinned: bool = False) -> Locked: ...

class SharedLock:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def is_locked(self) -> bool: ...
    @property
    def range(self) -> tuple[int, int]: ...
    def lend(self, name: str) -> None: ...
    def check(self) -> None: ...
    def frames(self) -> list[int]: ...
    def blocks(self, most: int | None = None) -> list[tuple[int, int]]: ...
    def unlock(self) -> None: ...

def lock_shared(
    memory: _SharedMemory | str | int | _HasDescriptor | None = None,
    where: tuple[int, int] | None = None,
    *,
    sysv: int | None = None,
    pinned: bool = False,
) -> SharedLock: ...
def borrow_lock(name: str) -> SharedLock: ...

class Registered:
    """Memory that is registered until `put`, the end of a `with` block, or until it is let go of."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def token(self) -> int:
        """0 to 2**64 - 1: what `register` returned, or the index of the ring's buffer."""
    @property
    def range(self) -> tuple[int, int]:
        """Addresses of the first byte and behind the last: multiples of 4096."""
    @property
    def is_gone(self) -> bool:
        """Some of the memory went away since it was got, or more was registered with it: get it again."""
    @property
    def is_held(self) -> bool:
        """False once it was put back, and in a child of fork: the other properties raise `LockError` then."""
    def put(self) -> None: ...

class RegistrationStats(TypedDict):
    regions: int
    bytes: int
    made: int
    evicted: int
    gone: int

class Registrations:
    """A cache of registrations: found again without a call of the system until their memory goes away.

    `limit` is bytes (a number, or text such as '1G'), `regions` and `buffers` are counts.
    """

    @overload
    def __init__(
        self,
        register: None = None,
        deregister: None = None,
        *,
        ring: None = None,
        buffers: None = None,
        limit: Size | None = None,
        regions: int | None = None,
    ) -> None:
        """Of memory whose frames stay. Raises `ArgumentError`, `Unsupported`, `KernelError`."""
    @overload
    def __init__(
        self,
        register: Callable[[int, int], int],
        deregister: Callable[[int, int, int], object],
        *,
        limit: Size | None = None,
        regions: int | None = None,
    ) -> None:
        """Of a device: `register(address, bytes)` returns a token for `deregister(address, bytes, token)`; both
        are bytes of whole pages."""
    @overload
    def __init__(
        self,
        *,
        ring: int | _HasDescriptor,
        buffers: int,
        limit: Size | None = None,
        regions: int | None = None,
    ) -> None:
        """Of the first `buffers` registered buffers of an io_uring."""
    def get(self, memory: _Memory) -> Registered:
        """Of an array of any shape that is in one piece, or any buffer. Raises `ArgumentError`, `KernelError`,
        `Unsupported`, `LockError` (closed, or of a parent), and what `register` raises."""
    def get_all(self, memories: Iterable[_Memory]) -> list[Registered]:
        """One for each, in their order, or none and what `get` raises."""
    def put(self, registered: Registered) -> None: ...
    def forget(self, memory: _Memory) -> None: ...
    def stats(self) -> RegistrationStats: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class SharedMemory:
    def __init__(
        self,
        name: str | None = None,
        create: bool = False,
        size: Size = 0,
        *,
        track: bool = True,
        ram: Size | None = None,
    ) -> None: ...
    @property
    def buf(self) -> memoryview | None: ...
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def close(self) -> None: ...
    def pin(self, where: tuple[int, int] | None = None) -> None: ...
    def unpin(self, where: tuple[int, int] | None = None) -> None: ...
    def unlink(self) -> None: ...

class Lock:
    def __init__(self, name: str, *, replicas: Literal[1, 2] = 1) -> None: ...
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    @property
    def holder_died(self) -> bool: ...
    def consistent(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Condition:
    def __init__(self, lock: Lock) -> None: ...
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Semaphore:
    def __init__(self, name: str, value: int = 1, *, replicas: Literal[1, 2] = 1) -> None: ...
    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool: ...
    def release(self, n: int = 1) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Barrier:
    parties: int
    def __init__(self, name: str, parties: int, *, replicas: Literal[1, 2] = 1) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def abort(self) -> None: ...
    def reset(self) -> None: ...

class SharedArray(np.ndarray[Any, np.dtype[Any]]):
    name: str | None
    locks: list[Lock]
    def unlink(self) -> None: ...
    def seal(self) -> None: ...
    def flush(self) -> int: ...
    def release(self) -> None: ...
    def acquire(self) -> None: ...
    def pin(self, *, write: bool = False, timeout: float | None = None) -> Pinned: ...

class Pinned:
    def __enter__(self) -> Pinned: ...
    def __exit__(self, *_: object) -> None: ...
    @property
    def is_pinned(self) -> bool: ...
    def check(self) -> None: ...
    def unpin(self) -> None: ...

def shared(
    name: str,
    shape: int | Sequence[int] | None = None,
    dtype: Any = "f8",
    *,
    page_size: Size | None = None,
    scheduler: Literal["distributed", "simple"] = "distributed",
    replicas: Literal[1, 2] = 1,
    hold: float | None = None,
    stale: float | None = None,
    file: str | PathLike[str] | None = None,
    consistency: Literal["strict", "release"] = "strict",
    stays: bool = False,
    locks: int | Literal["rows"] = 0,
) -> SharedArray: ...
def unshare(name: str) -> None: ...

class _Reads(Protocol):
    def read(self, offset: int, length: int, /) -> bytes: ...

def serve_pager(
    name: str,
    pager: _Reads | Callable[[int, int], bytes],
    size: Size,
    *,
    patience: float | None = None,
) -> None: ...
def set_ram(size: Size) -> None: ...
def cache_folder() -> str: ...
