"""The dispatcher: ``core`` decides (no sockets, clock or threads), ``server`` does the IO, ``pulse`` the heartbeats."""
