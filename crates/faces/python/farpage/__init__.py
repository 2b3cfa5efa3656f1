"""Open anything as memory: arrays bigger than RAM, from files, HTTP and S3.

    import farpage as fp
    w = fp.load("https://host/model.safetensors", ram="1G")  # a dict of arrays, not downloaded
    x = fp.load("s3://bucket/x.npy")                         # a NumPy array
    a = fp.open("big.bin", dtype="float32", shape=(-1, 768), mode="r+", ram="512M")
    a[0] = 1
    a.flush()
"""

from . import errors
from ._array import Array, Arrays
from ._cluster import Pinned, SharedArray, shared, unshare
from ._farpage import __version__
from ._fopen import Stream, fopen
from ._locks import Locked, lock_area
from ._map_fd import map_fd
from ._object import Object
from ._open import load, open, set_ram
from ._options import cache_folder
from ._pager import serve_pager
from ._registrations import Registered, Registrations
from ._shared import SharedMemory
from ._shared_locks import SharedLock, borrow_lock, lock_shared
from ._sync import Barrier, Condition, Lock, Semaphore
from .errors import *  # noqa: F403
from .errors import Error

__all__ = ["Array", "Arrays", "Error", "Object", "__version__", "cache_folder", "errors"]
__all__ += ["Pinned", "SharedArray", "SharedMemory", "load", "open", "serve_pager", "set_ram", "shared"]
__all__ += ["Registered", "Registrations", "SharedLock", "borrow_lock", "lock_shared"]
__all__ += ["Locked", "Stream", "fopen", "lock_area", "map_fd", "unshare", "Barrier", "Condition", "Lock", "Semaphore"]
