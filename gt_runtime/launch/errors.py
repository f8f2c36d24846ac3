"""What can go wrong with starting and finding clusters, in words a person can act on."""

from __future__ import annotations


class LaunchError(Exception):
    """A cluster could not be started, or not be found. The text says what was asked, what was found, and what to do.

    Attributes:
        asked: what the caller wanted.
        found: what was there instead.
        do: what to try; may be empty.
    """

    def __init__(self, asked: str, found: str, do: str = "") -> None:
        self.asked = asked
        self.found = found
        self.do = do
        super().__init__(f"{asked}: {found}" + (f"; {do}" if do else ""))


class NoCluster(LaunchError):
    """No cluster by that name, or none at all."""


class BadAddress(LaunchError):
    """What was given as an address is none."""


class AmbiguousCluster(LaunchError):
    """Several clusters run and none was named. ``names`` lists them."""

    def __init__(self, asked: str, names: tuple[str, ...], do: str) -> None:
        self.names = names
        super().__init__(asked, f"several are running: {', '.join(names)}", do)


class NameTaken(LaunchError):
    """A cluster of that name runs already, or is being started."""


class UnsafeDirectory(LaunchError):
    """The runtime directory belongs to someone else, or others may write to it."""
