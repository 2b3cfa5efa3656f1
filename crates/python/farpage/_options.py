"""Options, checked and in the form that the native part wants."""

import os

import numpy as np

from . import errors

_UNITS = {"": 1, "B": 1}
_UNITS.update({unit: 1024 ** (i + 1) for i, unit in enumerate("KMGT")})
_UNITS.update({unit + "iB": 1024 ** (i + 1) for i, unit in enumerate("KMGT")})
_UNITS.update({unit + "B": 1000 ** (i + 1) for i, unit in enumerate("KMGT")})

_CACHE_LIMIT = 10 << 30


def parse_size(size, what="size"):
    """Bytes of a size: a number, or text such as '512M', '1.5G', '500MB' (of 1000)."""
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        if size >= 0:
            return int(size)
    elif isinstance(size, str):
        text = size.strip()
        number = text.rstrip("KMGTiB ")
        unit = text[len(number) :].strip()
        try:
            if unit in _UNITS:
                value = float(number) * _UNITS[unit]
                if value >= 0:
                    return int(value)
        except (ValueError, OverflowError):
            pass
    raise errors.ArgumentError(f"{what} {size!r} is no size; give bytes, or text such as '512M'")


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
        folder, limit = cache
        return os.fspath(folder), parse_size(limit, "cache limit")
    return os.fspath(cache), _CACHE_LIMIT


def is_address(source):
    """True for a path or an address."""
    return isinstance(source, (str, bytes, os.PathLike))


def places_of(source, offset=None, size=None):
    """What the native part opens: a list of (address, offset, size), None where none is given."""
    if not isinstance(source, (list, tuple)):
        return [_place((source, offset, size))]
    if offset is not None or size is not None:
        raise errors.ArgumentError(
            "a list of parts has no offset and no size of its own; give those of each part: "
            "(address, offset, size)"
        )
    return [_place(part) for part in source]


def _place(part):
    given = part if isinstance(part, tuple) else (part,)
    if not 1 <= len(given) <= 3 or not is_address(given[0]):
        raise errors.ArgumentError(
            f"{part!r} is no part; give a path or an address, or (address, offset, size)"
        )
    address, offset, size = given + (None,) * (3 - len(given))
    size = None if size is None else parse_size(size)
    return os.fsdecode(address), None if offset is None else parse_size(offset, "offset"), size


_KEYWORDS = frozenset(
    "mode ram cache on_failure timeout headers decompress record replay size offset "
    "native bf16_as_f32 f16_as_f32".split()
)


def checked(**options):
    """Checks options and gives them the form that the native part wants."""
    unknown = set(options) - _KEYWORDS
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    for name in ("ram", "size", "offset"):
        if options.get(name) is not None:
            options[name] = parse_size(options[name], name)
    options["cache"] = _cache(options.get("cache"))
    if options.get("headers"):
        headers = options["headers"]
        options["headers"] = list(headers.items() if hasattr(headers, "items") else headers)
    for name in ("record", "replay"):
        if options.get(name) is not None:
            options[name] = os.fspath(options[name])
    return {name: value for name, value in options.items() if value is not None}
