"""redis-server with BGSAVE: loads keys, saves in the background while keys change, and compares the
dump with what was there at the time of the fork. usage: redis_job.py MIB"""
import os
import random
import socket
import subprocess
import sys
import time

from common import SEED, size_mib

SOCKET = "redis.sock"


class Client:
    """Just enough of the protocol for this job."""

    def __init__(self):
        for _ in range(3000):
            try:
                self.s = socket.socket(socket.AF_UNIX)
                self.s.connect(SOCKET)
                break
            except OSError:
                time.sleep(0.01)
        else:
            sys.exit("redis-server does not answer")
        self.f = self.s.makefile("rb")
        while self.call("PING") != b"PONG":
            time.sleep(0.01)

    def send(self, commands):
        out = bytearray()
        for args in commands:
            out += b"*%d\r\n" % len(args)
            for a in args:
                a = a if isinstance(a, bytes) else str(a).encode()
                out += b"$%d\r\n%s\r\n" % (len(a), a)
        self.s.sendall(out)

    def reply(self):
        line = self.f.readline().rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else self.f.read(int(rest) + 2)[:-2]
        return rest

    def call(self, *args):
        self.send([args])
        return self.reply()

    def batch(self, commands):
        self.send(commands)
        return [self.reply() for _ in commands]


def start():
    options = ["--port", "0", "--unixsocket", SOCKET, "--save", "", "--appendonly", "no"]
    options += ["--enable-debug-command", "local", "--logfile", "redis.log", "--daemonize", "no"]
    return subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL), Client()


def stop(server, client):
    client.send([("SHUTDOWN", "NOSAVE")])
    if server.wait(timeout=300) != 0:
        sys.exit("redis-server did not end well")


def keys(count, generation):
    rng = random.Random(SEED + generation)
    for i in range(count):
        filler = rng.randbytes(300) if i % 3 == 0 else b"value of key %d " % i * 64
        yield ("SET", f"key:{i}", b"%d:" % generation + filler)


def load(client, count, generation):
    batch = []
    for command in keys(count, generation):
        batch.append(command)
        if len(batch) == 500:
            client.batch(batch)
            batch = []
    client.batch(batch)


def main():
    count = (size_mib() << 20) // 1200
    server, client = start()
    load(client, count, 1)
    client.batch([("RPUSH", f"list:{i % 50}", i) for i in range(20000)])
    client.batch([("HSET", f"hash:{i % 20}", f"f{i}", i * i) for i in range(20000)])
    before = client.call("DEBUG", "DIGEST")
    print("loaded", client.call("DBSIZE").decode(), before.decode())
    client.call("BGSAVE")
    load(client, count // 2, 2)  # while the child saves: copy-on-write
    while b"rdb_bgsave_in_progress:1" in client.call("INFO", "persistence"):
        time.sleep(0.02)
    ok = b"rdb_last_bgsave_status:ok" in client.call("INFO", "persistence")
    print("saved", ok, "changed", client.call("DEBUG", "DIGEST").decode())
    stop(server, client)
    check = subprocess.run(["redis-check-rdb", "dump.rdb"], stdout=subprocess.PIPE)
    print("redis-check-rdb", check.returncode)
    server, client = start()
    after = client.call("DEBUG", "DIGEST")
    print("reloaded", client.call("DBSIZE").decode(), after.decode(), after == before)
    stop(server, client)
    for name in ("dump.rdb", "redis.log"):  # they hold times
        os.remove(name)


main()
