"""gt-top: the pool of workers, live in a terminal.

It reads the telemetry feed and asks the control socket; it never imports torch, and nothing else imports it.
"""
