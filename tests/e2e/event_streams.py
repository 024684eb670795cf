# SPDX-License-Identifier: Apache-2.0
"""A client of event streams that knows their ids and can resume them."""
import http.client
import json
import socket
import threading
import time


class Broken(Exception):
    """The connection ended before [DONE]."""


def events(server, path, body, last_id=None, headers=None):
    """(id, data) of each event, up to [DONE]; data is JSON or the text. Raises Broken."""
    head = dict(headers or {})
    if last_id is not None:
        head["Last-Event-ID"] = last_id
    try:
        connection, answer = server.raw("POST", path, body, head)
    except (OSError, http.client.HTTPException) as e:
        raise Broken(repr(e)) from e
    if answer.status != 200:
        raise AssertionError((answer.status, answer.read()))
    found = {}
    try:
        for line in answer:
            line = line.decode().rstrip("\n")
            if not line and "data" in found:
                data = found["data"]
                yield found.get("id"), data if data == "[DONE]" else json.loads(data)
                if data == "[DONE]":
                    return
                found = {}
            elif line and not line.startswith(":"):
                name, value = line.split(": ", 1)
                assert name not in found, (name, found)
                found[name] = value
    except (OSError, http.client.HTTPException) as e:
        raise Broken(repr(e)) from e
    finally:
        if connection.sock:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        answer.close()
        connection.close()
    raise Broken("no [DONE]")


def merged(found):
    """What a stream says of each choice, however it is divided into events, and its usage."""
    choices, usage = {}, None
    for _, data in found:
        if data == "[DONE]":
            continue
        if not data["choices"]:
            usage = data["usage"]
        for c in data["choices"]:
            mine = choices.setdefault(c["index"], {"text": "", "arguments": "", "names": [], "ids": [], "logprobs": [], "finish": None})
            delta = c.get("delta") or {}
            mine["text"] += c.get("text") or delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                mine["names"] += [call["function"]["name"]] if call["function"].get("name") else []
                mine["arguments"] += call["function"].get("arguments") or ""
            mine["ids"] += c.get("token_ids") or []
            logprobs = c.get("logprobs") or {}
            mine["logprobs"] += logprobs.get("content") or list(zip(logprobs.get("tokens") or [], logprobs.get("token_logprobs") or [],
                                                                    logprobs.get("text_offset") or []))
            assert not (mine["finish"] and c["finish_reason"])
            mine["finish"] = mine["finish"] or c["finish_reason"]
    return choices, usage


def whole(server, path, body, **more):
    return list(events(server, path, body, **more))


class Progress:
    """Of several streams: their events so far, and how many of them have no connection now."""

    def __init__(self):
        self.lock, self.n_event, self.n_away = threading.Lock(), 0, 0

    def add(self, n_event, n_away):
        with self.lock:
            self.n_event += n_event
            self.n_away += n_away


def patient(server, path, body, progress, **more):
    """All events of a stream whose connection may break at any time: it is resumed then. With how often."""
    found, n_break, away = [], 0, False
    while not found or found[-1][1] != "[DONE]":
        try:
            for event in events(server, path, body, found[-1][0] if found else None, **more):
                found.append(event)
                progress.add(1, -away)
                away = False
        except Broken:
            n_break += 1
            progress.add(0, not away)
            away = True
            assert n_break < 200
            time.sleep(0.05)
        except AssertionError as e:
            if e.args[0][0] != 503:  # the engine is away, or no frontend has asked it yet
                raise
            time.sleep(0.05)
    return found, n_break
