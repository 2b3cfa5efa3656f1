from collections.abc import Callable, Iterable, Mapping, Sequence
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

class SharedArray(np.ndarray[Any, np.dtype[Any]]):
    name: str | None
    def unlink(self) -> None: ...

def shared(
    name: str,
    shape: int | Sequence[int] | None = None,
    dtype: Any = "f8",
    *,
    page_size: Size | None = None,
    scheduler: Literal["distributed", "simple"] = "distributed",
    replicas: Literal[1, 2] = 1,
    stays: bool = False,
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
