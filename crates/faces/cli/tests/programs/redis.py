"""redis-server with its snapshot and the rewriting of its log, while clients write: what it has after
each restart is what it had. Says so, and digests that are the same each time.

usage: redis.py KEYS [random]     random: the children that save are killed, in the end all"""
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

KEYS, RANDOM = int(sys.argv[1]), sys.argv[2:] == ["random"]


def until(what, is_so):
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > 120:
            sys.exit(f"waited in vain: {what}")
        time.sleep(0.001)


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        until("redis-server listens", lambda: self.socket.connect_ex(path) == 0)
        self.file = self.socket.makefile("rb")

    def batch(self, commands):
        out = bytearray()
        for words in commands:
            out += b"*%d\r\n" % len(words)
            for word in words:
                word = word if isinstance(word, bytes) else str(word).encode()
                out += b"$%d\r\n%s\r\n" % (len(word), word)
        self.socket.sendall(out)
        return [self.reply() for _ in commands]

    def reply(self):
        line = self.file.readline().rstrip()
        if line[:1] != b"$":
            return line[1:]
        return None if line == b"$-1" else self.file.read(int(line[1:]) + 2)[:-2]

    def call(self, *words):
        return self.batch([words])[0]


def start(folder):
    words = ["redis-server", "--port", "0", "--unixsocket", f"{folder}/socket", "--save", ""]
    words += ["--appendonly", "yes", "--appendfsync", "no", "--dir", folder, "--daemonize", "no"]
    words += ["--auto-aof-rewrite-percentage", "0", "--enable-debug-command", "local"]
    server = subprocess.Popen(words + ["--logfile", f"{folder}/log"])
    client = Client(f"{folder}/socket")
    until("it has its data", lambda: b"LOADING" not in (client.call("GET", "key:0") or b""))
    return server, client


def write(client, first, generation):
    """A third of the values cannot be compressed."""
    chance = random.Random(generation)
    for at in range(first, KEYS, 200):
        keys = range(at, min(at + 200, KEYS))
        filler = [chance.randbytes(900) if i % 3 == 0 else b"value %d " % i * 90 for i in keys]
        client.batch([("SET", f"key:{i}", b"%d:" % generation + text) for i, text in zip(keys, filler)])


def until_it_says(client, what):
    until(what.decode(), lambda: what in client.call("INFO", "persistence"))


def children_of(server):
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
        return [int(pid) for pid in file.read().split()]


def killed(folder, server, client):
    """A child that is killed has saved nothing, and the server goes on."""
    chance = random.Random(3)
    for what in ["BGSAVE", "BGREWRITEAOF"] * 3:
        client.call(what)
        # The child is there before the answer, and may have done all by now.
        children = children_of(server)
        # At any time: nothing is waited for.
        time.sleep(chance.random() * 0.2)
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        until_it_says(client, b"bgsave_in_progress:0")
        until_it_says(client, b"aof_rewrite_in_progress:0")
    print("digest", client.call("DEBUG", "DIGEST").decode())
    server.kill()
    server.wait()


def stop(server, client):
    client.socket.sendall(b"*1\r\n$8\r\nSHUTDOWN\r\n")
    print("ended", server.wait())


def main(folder):
    server, client = start(folder)
    write(client, 0, 1)
    if RANDOM:
        return killed(folder, server, client)
    print("written", client.call("DBSIZE"), client.call("DEBUG", "DIGEST"))
    client.call("BGSAVE")
    write(client, KEYS // 2, 2)
    until_it_says(client, b"rdb_bgsave_in_progress:0")
    until_it_says(client, b"rdb_last_bgsave_status:ok")
    client.call("BGREWRITEAOF")
    write(client, KEYS // 4, 3)
    until_it_says(client, b"aof_rewrite_in_progress:0")
    until_it_says(client, b"aof_last_bgrewrite_status:ok")
    bench = ["redis-benchmark", "-s", f"{folder}/socket", "-n", "5000", "-q", "-t", "set,get,lpush"]
    print("bench", subprocess.run(bench, stdout=subprocess.DEVNULL).returncode)
    client.batch([("DEL", "mylist"), ("DEL", "key:__rand_int__")])
    before = client.call("DEBUG", "DIGEST")
    print("before", client.call("DBSIZE"), before)
    stop(server, client)
    server, client = start(folder)
    print("after", client.call("DBSIZE"), client.call("DEBUG", "DIGEST") == before)
    stop(server, client)


with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
    os.symlink(subprocess.check_output(["which", "redis-check-rdb"]).strip(), f"{folder}/redis-server".encode())
    os.environ["PATH"] = folder + ":" + os.environ["PATH"]
    main(folder)
