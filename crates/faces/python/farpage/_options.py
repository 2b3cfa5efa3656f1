"""Options, checked and in the form that the native part wants."""

import os
from collections.abc import Iterable, Mapping

import numpy as np

from . import errors

_UNITS = {"": 1, "B": 1}
_UNITS.update({unit: 1024 ** (i + 1) for i, unit in enumerate("KMGT")})
_UNITS.update({unit + "iB": 1024 ** (i + 1) for i, unit in enumerate("KMGT")})
_UNITS.update({unit + "B": 1000 ** (i + 1) for i, unit in enumerate("KMGT")})

_CACHE_LIMIT = 10 << 30
_TOO_MUCH = (1 << 62) + 1


def parse_size(size, what="size"):
    """Bytes of a size: a number, or text such as '512M', '1.5G', '500MB' (of 1000)."""
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        if 0 <= size < _TOO_MUCH:
            return int(size)
    elif isinstance(size, str):
        text = size.strip()
        number = text.rstrip("KMGTiB ")
        unit = text[len(number) :].strip()
        try:
            if unit in _UNITS:
                value = float(number) * _UNITS[unit]
                if 0 <= value < _TOO_MUCH:
                    return int(value)
        except (ValueError, OverflowError):
            pass
    raise errors.ArgumentError(
        f"{what} {size!r} is no number of bytes; give one from 0 to 2**62, or text such as '512M'"
    )


def cache_folder():
    """Where `cache=True` keeps what is fetched: `FARPAGE_CACHE`, or below the user's caches.

    >>> fp.cache_folder().endswith("farpage")
    True
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("FARPAGE_CACHE") or os.path.join(base, "farpage")


def _cache(cache):
    if cache is None:
        cache = bool(os.environ.get("FARPAGE_CACHE"))
    if cache is False:
        return None
    if cache is True:
        return cache_folder(), _CACHE_LIMIT
    if isinstance(cache, tuple):
        if len(cache) != 2 or not is_address(cache[0]):
            raise errors.ArgumentError(f"cache {cache!r} is no (folder, limit); give these two")
        return os.fspath(cache[0]), parse_size(cache[1], "cache limit")
    return os.fspath(cache), _CACHE_LIMIT


def is_address(source):
    """True for a path or an address."""
    return isinstance(source, (str, bytes, os.PathLike))


def places_of(source, offset=None, size=None):
    """What the native part opens: a list of (address, offset, size), None where none is given."""
    source, offset, size = alone(source, offset, size)
    if not is_parts(source):
        return [_place((source, offset, size))]
    if offset is not None or size is not None:
        raise errors.ArgumentError(
            "parts have no offset and no size together; give those of each part: "
            "(address, offset, size)"
        )
    return [_place(part) for part in (source if isinstance(source, list) else [source])]


def is_parts(source):
    """True for parts: a list of them, or the tuple of one."""
    return isinstance(source, (list, tuple))


def alone(source, offset, size):
    """Source, offset and size, where a part that is alone says them."""
    if isinstance(source, list) and len(source) == 1:
        if is_address(source[0]) or isinstance(source[0], tuple):
            source = source[0]
    if isinstance(source, tuple) and offset is None and size is None and 1 <= len(source) <= 3:
        source, offset, size = source + (None,) * (3 - len(source))
    return source, offset, size


def _place(part):
    given = part if isinstance(part, tuple) else (part,)
    if not 1 <= len(given) <= 3 or not is_address(given[0]):
        raise errors.ArgumentError(
            f"{part!r} is no part; give a path or an address, or (address, offset, size); several "
            "are a list"
        )
    address, offset, size = given + (None,) * (3 - len(given))
    size = None if size is None else parse_size(size)
    return os.fsdecode(address), None if offset is None else parse_size(offset, "offset"), size


_PATH = ((str, bytes, os.PathLike), "a path")
_FLAG = ((bool, np.bool_), "True or False")

# What each option may be, and what to say of it; None stands for its default.
_OPTIONS = {
    "mode": (str, "'r', 'r+', 'w+' or 'c'"),
    "on_failure": (str, "'error', 'wait' or 'zero'"),
    "timeout": ((int, float, np.number), "seconds"),
    "headers": (Iterable, "a dict, or pairs of text"),
    "cache": ((bool, tuple, *_PATH[0]), "True, a folder, or (folder, limit)"),
    "record": _PATH,
    "replay": _PATH,
    "decompress": _FLAG,
    "native": _FLAG,
    "bf16_as_f32": _FLAG,
    "f16_as_f32": _FLAG,
    "ram": (object, ""),
    "size": (object, ""),
    "offset": (object, ""),
}


def checked(**options):
    """Checks options and gives them the form that the native part wants."""
    for name, value in options.items():
        if name not in _OPTIONS:
            known = ["dtype", "shape", "eager", "progress", *_OPTIONS]
            raise TypeError(f"unknown option {name!r}; there are {', '.join(known)}")
        kinds, wanted = _OPTIONS[name]
        if value is not None and not isinstance(value, kinds):
            raise errors.ArgumentError(f"{name} cannot be {value!r}; give {wanted}")
    for name in ("ram", "size", "offset"):
        if options.get(name) is not None:
            options[name] = parse_size(options[name], name)
    options["cache"] = _cache(options.get("cache"))
    if options.get("headers"):
        headers = options["headers"]
        pairs = [tuple(p) for p in (headers.items() if isinstance(headers, Mapping) else headers)]
        if not all(len(p) == 2 and all(isinstance(text, str) for text in p) for p in pairs):
            raise errors.ArgumentError("headers are no pairs of text; give {'Name': 'value'}")
        options["headers"] = pairs
    for name in ("record", "replay"):
        if options.get(name) is not None:
            options[name] = os.fspath(options[name])
    return {name: value for name, value in options.items() if value is not None}
