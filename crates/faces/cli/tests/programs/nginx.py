"""nginx with zones of shared memory that several workers have: limits of requests and of connections,
and a cache. Says what was answered, which is the same each time.

usage: nginx.py KEYS [random]     random: workers are killed meanwhile, and nothing is said"""
import collections
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

KEYS, RANDOM = int(sys.argv[1]), sys.argv[2:] == ["random"]
CLIENTS, WORKERS = 4, 4
CONFIG = """
daemon off; worker_processes %(workers)d; pid %(dir)s/pid; error_log %(dir)s/errors;
events { worker_connections 512; }
http {
    access_log off; keepalive_requests 1000000; large_client_header_buffers 4 8k;
    client_body_temp_path %(dir)s/body; proxy_temp_path %(dir)s/proxy;
    fastcgi_temp_path %(dir)s/a; uwsgi_temp_path %(dir)s/b; scgi_temp_path %(dir)s/c;
    limit_req_zone $arg_key zone=requests:%(zone)dk rate=1r/m;
    limit_conn_zone $arg_key zone=connections:1m;
    proxy_cache_path %(dir)s/cache keys_zone=cache:16m inactive=1h;
    server {
        listen unix:%(dir)s/socket;
        location /limited { limit_req zone=requests; try_files /none =204; }
        location /cached/ {
            proxy_pass http://unix:%(dir)s/behind:/; proxy_cache cache; proxy_cache_valid 200 1h;
            add_header X-Cache $upstream_cache_status;
        }
        location /slow { limit_conn connections 2; proxy_pass http://unix:%(dir)s/behind:/wait; }
    }
}
"""


class Behind:
    """The server behind nginx. It answers `/wait` when it is told to."""

    def __init__(self, path):
        self.waiting = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        os.chmod(path, 0o777)
        self.socket.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.serve, args=[self.socket.accept()[0]], daemon=True).start()

    def serve(self, connection):
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(65536)
            if not part:
                return
            head += part
        name = head.split(b" ")[1]
        if name.startswith(b"/wait"):
            self.waiting.release()
            self.go.acquire()
        body = name * 20
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connection.close()


class Client:
    """A connection by which several requests go at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, names):
        lines = [f"GET {name} HTTP/1.1\r\nHost: h\r\n\r\n" for name in names]
        self.socket.sendall("".join(lines).encode())

    def reply(self):
        status = self.file.readline().split(b" ")
        if len(status) < 2:
            raise ConnectionError
        heads = dict(line.lower().split(b": ", 1) for line in iter(self.line, b""))
        body = self.file.read(int(heads.get(b"content-length", 0)))
        return int(status[1]), heads.get(b"x-cache", b"-").decode(), body

    def line(self):
        return self.file.readline().rstrip(b"\r\n")

    def ask(self, *names):
        self.send(names)
        return [self.reply() for _ in names]


def long_key(i):
    return f"{i}-" + "k" * 1500


def all_at_once(path, names, since=None):
    """Asks for all, by several clients, and counts what comes. A minute after `since` nginx lets a key in
    again that it let in then: that counts as refused, so that a slow machine counts alike."""
    counts, mutex = collections.Counter(), threading.Lock()

    def work(part):
        client, own = Client(path), collections.Counter()
        for at in range(0, len(part), 20):
            some = part[at : at + 20]
            for name, (status, cache, body) in zip(some, client.ask(*some)):
                if since and status == 204 and time.monotonic() - since > 60:
                    status = 503
                right = status != 200 or body == ("/" + name.removeprefix("/cached/")).encode() * 20
                own[status, cache, right] += 1
        with mutex:
            counts.update(own)

    threads = [threading.Thread(target=work, args=[names[i::CLIENTS]]) for i in range(CLIENTS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sorted(counts.items())


def workers(master):
    with open(f"/proc/{master}/task/{master}/children") as file:
        return [int(pid) for pid in file.read().split()]


def until(what, is_so):
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > 120:
            sys.exit(f"waited in vain: {what}")
        time.sleep(0.001)


def all_work(master):
    return len(workers(master)) >= WORKERS


def reload(master):
    """The workers are others afterwards, and have the same zones."""
    before = set(workers(master))
    os.kill(master, signal.SIGHUP)
    until("the workers are others", lambda: not before & set(workers(master)) and all_work(master))


def connections(path, behind):
    """Two at a time of one key; the third is refused until they have ended."""
    two = [Client(path), Client(path)]
    for client in two:
        client.send(["/slow?key=a"])
        behind.waiting.acquire()
    print("third", Client(path).ask("/slow?key=a")[0][0])
    behind.go.release(2)
    print("two", [client.reply()[0] for client in two])
    behind.go.release()
    print("after", Client(path).ask("/slow?key=a")[0][0])


def kill_workers(path, master):
    """Workers are killed while they are used; those that follow go on."""
    choice, names = random.Random(7), [f"/limited?key={long_key(i)}" for i in range(KEYS)]
    for _ in range(30):
        client = Client(path)
        try:
            client.send(choice.sample(names, 20))
            # At any time: nothing is waited for.
            time.sleep(choice.random() * 0.02)
            victims = workers(master)
            if victims:
                os.kill(choice.choice(victims), signal.SIGKILL)
            [client.reply() for _ in range(20)]
        except OSError:
            pass
    until("there are workers again", lambda: all_work(master))
    print("answers", Client(path).ask("/limited?key=new")[0][0])


def serve(folder):
    os.chmod(folder, 0o777)
    path, behind = f"{folder}/socket", Behind(f"{folder}/behind")
    zone = max(256, KEYS * 2 * 5 // 4)
    with open(f"{folder}/conf", "w") as file:
        file.write(CONFIG % {"dir": folder, "workers": WORKERS, "zone": zone})
    words = ["nginx", "-p", folder, "-c", f"{folder}/conf", "-e", f"{folder}/errors"]
    server = subprocess.Popen(words)
    until("nginx has started", lambda: os.path.exists(path) and all_work(server.pid))
    os.chmod(path, 0o777)
    if RANDOM:
        kill_workers(path, server.pid)
        [os.kill(pid, signal.SIGKILL) for pid in [server.pid, *workers(server.pid)]]
        return server.wait()
    limited = [f"/limited?key={long_key(i)}" for i in range(KEYS)]
    cached = [f"/cached/{i}" for i in range(KEYS // 20)]
    began = time.monotonic()
    for turn in ("first", "second", "reloaded"):
        print(turn, "limited", all_at_once(path, limited, turn != "first" and began))
        print(turn, "cached", all_at_once(path, cached))
        if turn == "second":
            reload(server.pid)
    connections(path, behind)
    server.terminate()
    print("ended", server.wait())
    with open(f"{folder}/errors") as file:
        wrong = [line for line in file if "[alert]" in line or "[crit]" in line or "[emerg]" in line]
    print("errors", wrong)


with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
    serve(folder)
