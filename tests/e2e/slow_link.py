"""A TCP proxy with a rate and a delay: the effect of a slow or distant network on a link.

    with SlowLink(target="127.0.0.1:7071", bytes_per_second=4e6) as link:
        ... connect to link.address instead ...

Each connection has its own rate in each direction; `delay` is added in each direction. Lateness
(sleeps end late, threads take turns) is made up for, up to BURST bytes. `hold` keeps back what one
process sends and receives. Standard library only.
"""

import os
import selectors
import socket
import threading
import time
from collections import deque
from pathlib import Path

CHUNK = 16 << 10
# Small, so that what a sender considers sent has really passed.
BUFFER = 64 << 10
BURST = 64 << 10
QUEUED_MAX = 64 << 20  # in flight within a delay
HELD_NAP = 0.02  # seconds


def split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def owns(pid, port):
    """Whether the process has a TCP socket at that local port."""
    sockets = set()
    for table in ("tcp", "tcp6"):  # gRPC's are of both families
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rsplit(":", 1)[1], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(descriptor) in sockets:
                return True
        except OSError:  # it is closed meanwhile
            pass
    return False


class Direction:
    """Copies bytes from one socket to another, paced, but none while `held()`."""

    def __init__(self, source, sink, rate, delay, held):
        self.source, self.sink, self.rate, self.delay = source, sink, rate, delay
        self.held = held
        self.queue = deque()  # (when it may leave, bytes)
        self.queued = 0
        self.more = threading.Condition()
        self.ended = False

    def read(self):
        try:
            free = 0.0  # when the wire is next free
            while True:
                data = self.source.recv(CHUNK)
                if not data:
                    break
                while self.held():
                    time.sleep(HELD_NAP)
                now = time.monotonic()
                if self.rate:
                    free = max(free, now - BURST / self.rate) + len(data) / self.rate
                    time.sleep(max(0.0, free - now))
                with self.more:
                    while self.queued > QUEUED_MAX and not self.ended:
                        self.more.wait(1)
                    self.queue.append((time.monotonic() + self.delay, data))
                    self.queued += len(data)
                    self.more.notify_all()
        except OSError:
            pass
        with self.more:
            self.ended = True
            self.more.notify_all()

    def write(self):
        try:
            while True:
                with self.more:
                    while not self.queue and not self.ended:
                        self.more.wait(1)
                    if not self.queue:
                        break
                    when, data = self.queue.popleft()
                time.sleep(max(0.0, when - time.monotonic()))
                self.sink.sendall(data)
                with self.more:
                    self.queued -= len(data)
                    self.more.notify_all()
        except OSError:
            pass
        for end in (self.source, self.sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class SlowLink:
    def __init__(self, target=None, bytes_per_second=0, delay=0.0):
        self.target = target  # may be set later, before the first connection
        self.rate = bytes_per_second
        self.delay = delay
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.rate:  # before listen: accepted sockets inherit it
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = []
        self.stopping = False
        self.held = None  # a process

    def __enter__(self):
        self._spawn(self._accept)
        return self

    def __exit__(self, kind, error, trace):
        self.stopping = True
        for end in self.open:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self.listener.close()

    def hold(self, pid):
        """From now on nothing passes on the connections of that process, neither on those that are
        open nor on new ones, until `release`."""
        self.held = pid

    def release(self):
        self.held = None

    def _holds(self, near):
        """Tells whether that connection is held now; looks once for each process."""
        known = {}

        def holds():
            pid = self.held
            if pid is not None and pid not in known:
                try:
                    known[pid] = owns(pid, near.getpeername()[1])
                except OSError:  # the connection is closed, or the process has ended
                    return False
            return not self.stopping and known.get(pid, False)

        return holds

    def _spawn(self, run):
        threading.Thread(target=run, daemon=True).start()

    def _accept(self):
        selector = selectors.DefaultSelector()
        selector.register(self.listener, selectors.EVENT_READ)
        while not self.stopping:
            try:
                if not selector.select(0.2):
                    continue
                near, _ = self.listener.accept()
                far = socket.socket()
                if self.rate:
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                far.connect(split(self.target))
            except (OSError, ValueError):
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open += [near, far]
            held = self._holds(near)
            for source, sink in ((near, far), (far, near)):
                direction = Direction(source, sink, self.rate, self.delay, held)
                self._spawn(direction.read)
                self._spawn(direction.write)


def raw_rate(link, size):
    """Bytes/s of a plain transfer of `size` bytes over a link, whose target this sets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        link.target = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_connection(split(link.address), timeout=60) as sender:
            receiver, _ = server.accept()
            with receiver:
                threading.Thread(target=sender.sendall, args=(bytes(size),), daemon=True).start()
                receiver.settimeout(60)
                begin, got = time.monotonic(), 0
                while got < size:
                    data = receiver.recv(CHUNK)
                    if not data:
                        raise RuntimeError(f"the link ended after {got} of {size} bytes")
                    got += len(data)
                seconds = time.monotonic() - begin
    link.target = None
    return size / seconds
