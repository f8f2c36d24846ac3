"""A worker: one process a device, which runs what the dispatcher sends. Imports nothing here: see ``run.run``.

``server`` has the sockets and the main loop, ``executor`` does what a message says (its inner loop is C++, in
``_native``), ``peers`` and ``channel`` copy values between workers, ``memory`` and ``bulk`` move large tensors from and
to clients, ``pulse`` and ``sampler`` make the heartbeat.
"""
