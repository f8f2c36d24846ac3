"""The telemetry feed: its records, their publisher and (later) recorder and player. Torch-free."""
