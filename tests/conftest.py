"""For all tests: hypothesis draws the same examples every time, and no example races a clock."""

import signal

from hypothesis import settings

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dapfl", derandomize=True, deadline=None)
settings.load_profile("dapfl")
