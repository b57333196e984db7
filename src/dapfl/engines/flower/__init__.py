"""Flower as an engine: the same protocol, its clients on Flower nodes.

`engine.open_here` runs SuperLink and SuperNodes on this machine, `engine.open_at` uses a running SuperLink.
Nothing is imported here: every ClientApp process passes through, once a message.
"""
