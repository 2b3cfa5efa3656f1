"""A program that a type checker in its strictest mode accepts."""

import numpy as np

import farpage as fp


def ramp(offset: int, length: int) -> bytes:
    return bytes(n % 251 for n in range(offset, offset + length))


def total(path: str) -> float:
    array = fp.open(path, dtype="float32", shape=(-1, 16), mode="r+", ram="64M")
    array[0] = 1
    array.flush()
    plain: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = np.asarray(array)
    return float(plain.sum())


def main(path: str) -> int:
    with fp.open(path, timeout=5) as obj:
        first: bytes = obj[:100]
        came: int = obj.prefetch((0, 4096), progress=lambda done: None)
        resident: int = obj.stats()["resident_bytes"]
    try:
        fp.open(ramp, size="1M").close()
    except fp.CallbackError as error:
        print(error)
    with fp.Registrations(limit="1G") as cache, cache.get(np.zeros(9)) as registered:
        gone: bool = registered.is_gone
        made: int = cache.stats()["made"]
        fp.Registrations(lambda at, size: at, lambda at, size, token: None).close()
        print(gone, made, [held.token for held in cache.get_all([bytearray(9)])])
    with fp.open([path, (path, "4K"), (path, 0, 80)], mode="c") as parts:
        parts[0:4] = b"head"
    return len(first) + came + resident + len(fp.open((path, 8), size=None, offset=None))
