"""Small clients for the tests of the local engine, in a module that worker processes can import."""

import os
import struct
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from dapfl.errors import DataError


class Shared:
    """What the clients of one worker share."""


def without_data(shared: object) -> "Counter":
    raise DataError("mnist is not there")


def ends_while_it_reads(connection: Connection, team: object) -> None:
    """A worker process that dies over every message before it has read it to its end."""
    connection.recv()  # its clients
    connection.send(None)
    connection.recv()  # whom the message is for


def ends_while_it_answers(connection: Connection, team: object) -> None:
    """A worker process that dies over every message with its answer half sent."""
    connection.recv()  # its clients
    connection.send(None)
    connection.recv()  # whom the message is for
    connection.recv_bytes()
    connection.send(None)
    os.write(connection.fileno(), struct.pack("!i", 100) + b"half of an answer")


@dataclass
class Counter:
    """Counts its messages and answers with the count: its state is the count."""

    client: int
    shared: object
    count: int = 0

    def handle(self, message: bytes) -> bytes:
        self.count += 1
        return b"%d:%d:%s" % (self.client, self.count, message)

    def saved_state(self) -> bytes:
        return str(self.count).encode()

    def restore(self, state: bytes) -> None:
        self.count = int(state)


@dataclass
class Keeping(Counter):
    """Answers with how many others still hold its last reply, and remembers that."""

    last: bytes = b""

    def handle(self, message: bytes) -> bytes:
        holders = sys.getrefcount(self.last) - 2  # this object, and the call itself
        self.last = b"held by %d " % holders + message
        return self.last


@dataclass
class Mortal(Counter):
    """Kills its worker on the message `die`, the first `deaths` times; files in `folder` count them."""

    folder: Path = field(default=Path())
    deaths: int = 1

    def handle(self, message: bytes) -> bytes:
        marks = len(list(self.folder.glob("death-*")))
        if message == b"die" and marks < self.deaths:
            (self.folder / f"death-{marks}").touch()
            os._exit(9)
        return super().handle(message)


@dataclass
class Fragile(Mortal):
    """Kills its worker on the message `die` too, and then once more while it is built again."""

    def __post_init__(self) -> None:
        builds = len(list(self.folder.glob("build-*")))
        (self.folder / f"build-{builds}").touch()
        if builds == 1:
            os._exit(9)


@dataclass
class Raising(Counter):
    """Raises on every message."""

    def handle(self, message: bytes) -> bytes:
        raise ValueError("a secret that must not leave the worker")


@dataclass
class Slow(Counter):
    """Answers only once a file appears."""

    gate: Path = field(default=Path())

    def handle(self, message: bytes) -> bytes:
        if message == b"slow":
            while not self.gate.exists():
                pass
        return super().handle(message)


@dataclass
class Opening(Slow):
    """Makes the file that a `Slow` client waits for."""

    def handle(self, message: bytes) -> bytes:
        self.gate.touch()
        return super().handle(message)
