# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frame by frame (RFC 9113), for tests that do what no client library does: windows of 0, bodies that never end.

Headers are literals without index and without Huffman coding (RFC 7541 6.2.2), so that no state is needed."""
import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
REFUSED_STREAM, ENHANCE_YOUR_CALM = 7, 11


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _string(text):
    data = text.encode()
    assert len(data) < 127
    return bytes((len(data),)) + data


def head(method, path, headers=()):
    fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "x"), *headers]
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


class Http2:
    """A connection with prior knowledge. window: bytes that the server may send on a stream before it is asked to go on."""

    def __init__(self, host, port, window=65535, timeout=120):
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.stream = -1
        self.rest = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window)))

    def close(self):
        self.socket.close()

    def request(self, method, path, headers=(), body=None, end=True):
        """Open a stream; its number. body: None for none; end: it is complete."""
        self.stream += 2
        flags = END_HEADERS | (END_STREAM if body is None and end else 0)
        self.socket.sendall(frame(HEADERS, flags, self.stream, head(method, path, headers)))
        if body is not None:
            self.data(self.stream, body, end)
        return self.stream

    def data(self, stream, body, end=False):
        pieces = [body[i:i + 16384] for i in range(0, len(body), 16384)] or [b""]
        self.socket.sendall(b"".join(frame(DATA, END_STREAM if end and i == len(pieces) - 1 else 0, stream, piece)
                                     for i, piece in enumerate(pieces)))

    def _read(self, n):
        while len(self.rest) < n:
            piece = self.socket.recv(1 << 16)
            if not piece:
                return None
            self.rest += piece
        found, self.rest = self.rest[:n], self.rest[n:]
        return found

    def next_frame(self):
        """(kind, flags, stream, payload); None: the connection is closed. Settings are acknowledged."""
        try:
            begin = self._read(9)
            payload = self._read(int.from_bytes(begin[:3], "big")) if begin else None
        except ConnectionError:
            return None
        if payload is None:
            return None
        kind, flags, stream = begin[3], begin[4], int.from_bytes(begin[5:], "big") & 0x7FFFFFFF
        if kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        return kind, flags, stream, payload

    def wait_frame(self, kind, stream):
        """The payload of the next frame of that kind on that stream; None: the connection is closed before."""
        while found := self.next_frame():
            if found[0] == kind and found[2] == stream:
                return found[3]
        return None
