"""Hostile connections: silent, junk, and calls whose answers are never read. Standard library."""

import os
import re
import socket
import ssl
import struct
import threading
import time
from pathlib import Path


def listening_ports(pid):
    """All TCP ports on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(link))
        except OSError:
            continue  # closed meanwhile
        if match:
            inodes.add(match.group(1))
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sorted(
        {
            int(fields[1].split(":")[1], 16)
            for fields in map(str.split, lines)
            if fields[3] == "0A" and fields[9] in inodes
        }
    )


def client_context(folder):
    """TLS as a client of the cluster whose certificates are in `folder`; does not verify the
    server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context


def _header(name, value):
    """One header as HPACK's literal without indexing, both strings plain."""
    encoded = b"\x00"
    for text in (name.encode(), value.encode()):
        assert len(text) < 127
        encoded += bytes([len(text)]) + text
    return encoded


def _http2_frame(kind, flags, stream, payload):
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def _open_exchange(address, protocol, stream, scheme="https"):
    """The headers of an Exchange call by the client "stalled"."""
    headers = b"".join(
        _header(*pair)
        for pair in (
            (":method", "POST"),
            (":scheme", scheme),
            (":path", "/starling.ParameterServer/Exchange"),
            (":authority", f"{address[0]}:{address[1]}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("starling-identity", "client:stalled"),
            ("starling-version", "0"),
            ("starling-protocol", str(protocol)),
        )
    )
    return _http2_frame(1, 4, stream, headers)


_HTTP2_BEGINNING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _http2_frame(4, 0, 0, b"")


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _reader_pull(job_uid, piece, partition, view):
    """A reader's PULL of a slice (common/protocol/frame.h)."""
    frame = bytearray(192)
    struct.pack_into("<IHBBBBHIQI", frame, 0, 0x474C5453, 1, 5, 0, 1, 0, 8, 0, job_uid, piece)
    struct.pack_into("<I", frame, 48, partition)
    struct.pack_into("<Q", frame, 56, view)
    struct.pack_into("<Q", frame, 88, 1)
    struct.pack_into("<I", frame, 188, _crc32c(frame[:188]))
    return bytes(frame)


def stalled_reader(address, protocol, job_uid, piece=0, partition=0, view=1):
    """Requests a slice as a client of a cluster without TLS and reads nothing; returns the
    connection."""
    connection = connect(address)
    connection.sendall(
        _HTTP2_BEGINNING
        + _open_exchange(address, protocol, 1, "http")
        + _http2_frame(
            0, 0, 1, b"\x00\x00\x00\x00\xc0" + _reader_pull(job_uid, piece, partition, view)
        )
    )
    return connection


def open_streams(connection, address, protocol, streams=10):
    """HTTP/2's preface, and calls of Exchange with half a frame each: then nothing more."""
    connection.sendall(_HTTP2_BEGINNING)
    for i in range(streams):
        connection.sendall(_open_exchange(address, protocol, 2 * i + 1))
        # A message of 192 bytes is announced, and half of it sent.
        connection.sendall(_http2_frame(0, 0, 2 * i + 1, b"\x00\x00\x00\x00\xc0" + bytes(96)))


def connect(address):
    connection = socket.create_connection(address, timeout=30)
    connection.settimeout(30)
    return connection


class Stalled:
    """Clients that hold connections and do nothing with them: a third sends nothing at all, a
    third shows a client's certificate and sends nothing more, a third opens calls and leaves
    them incomplete. On admin ports, which are plain HTTP, two thirds leave a request incomplete."""

    def __init__(self, addresses, context, protocol, count, admin_ports=()):
        self.connections = []
        for i in range(count):
            address = addresses[i % len(addresses)]
            kind = i // len(addresses) % 3  # all kinds on each address
            connection = connect(address)
            if address[1] in admin_ports:
                if kind > 0:
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half")
                self.connections.append(connection)
                continue
            if kind > 0:
                connection = context.wrap_socket(connection)
            if kind > 1:
                open_streams(connection, address, protocol)
            self.connections.append(connection)

    def close(self):
        for connection in self.connections:
            connection.close()


class Junk:
    """Connections that send random bytes and close, at a rate, on all addresses in turn. `made`
    counts those that sent all of them."""

    def __init__(self, addresses, per_second):
        self.addresses = addresses
        self.period = 1 / per_second
        self.made = 0
        self.failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        noise = os.urandom(1 << 16)
        due = time.monotonic()
        while not self._stop.is_set():
            due += self.period
            time.sleep(max(0, due - time.monotonic()))
            tried = self.made + self.failed
            try:
                address = self.addresses[tried % len(self.addresses)]
                with socket.create_connection(address, timeout=10) as one:
                    start = tried * 7919 % (len(noise) - 256)
                    one.sendall(noise[start : start + 256])
            except OSError:
                self.failed += 1
            else:
                self.made += 1

    def close(self):
        self._stop.set()
        self._thread.join(30)
