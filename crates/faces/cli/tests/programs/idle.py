"""Memory that nobody uses beside memory that is used again and again.

The unused is another task's, shared, or both: the arguments `task`, `shared`.
"""

import mmap
import os
import signal
import sys

MIB = 1 << 20
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
ROUNDS = 240


def filled(memory):
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at : at + mmap.PAGESIZE] = os.urandom(mmap.PAGESIZE)
    return memory


child = 0
if "task" in sys.argv:
    ready, tell = os.pipe()
    # Nothing comes there: it ends with this process, and so does the child.
    over, lives = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(lives)
        idle = filled(mmap.mmap(-1, 96 * MIB, flags=PRIVATE))
        os.write(tell, b".")
        os.read(over, 1)
        os._exit(0)
    os.read(ready, 1)
used = filled(mmap.mmap(-1, 44 * MIB, flags=PRIVATE))
if "shared" in sys.argv:
    private = filled(mmap.mmap(-1, 96 * MIB, flags=PRIVATE))
    file = os.open(f"/dev/shm/idle-{os.getpid()}", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, len(private))
    shared = mmap.mmap(file, len(private))
    for at in range(0, len(private), MIB):
        shared[at : at + MIB] = private[at : at + MIB]
for _ in range(ROUNDS):
    for at in range(0, len(used), mmap.PAGESIZE):
        used[at]
if child:
    os.kill(child, signal.SIGKILL)
print(ROUNDS * len(used) // mmap.PAGESIZE)
