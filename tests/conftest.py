"""For all tests: hypothesis draws the same examples every time, and no example races a clock."""

from hypothesis import settings

settings.register_profile("dapfl", derandomize=True, deadline=None)
settings.load_profile("dapfl")
