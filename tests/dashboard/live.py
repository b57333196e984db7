"""The live page's real server, in a thread of the test."""

import socket
import threading
from contextlib import contextmanager

from dapfl.dashboard.server import LiveServer


@contextmanager
def serving(directory, port=0):
    """Serves the live page of a run directory; yields its port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        server = LiveServer(directory, "127.0.0.1", interval=0.02)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=30)
            assert not thread.is_alive(), "the server did not stop"
