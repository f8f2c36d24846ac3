"""The running system of GT: protocol, sharding, dispatcher, workers, telemetry, control, launch."""

__version__ = "0.1.0"
