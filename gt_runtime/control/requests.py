"""Control requests as the dispatcher sees them: which methods there are, what they take, and who may call them.

Shared with the client for its errors. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any


class ControlError(Exception):
    """A request that was not done: what was asked, what was found, what to do."""

    def __init__(self, what: str, found: str, do: str) -> None:
        super().__init__(f"{what}: {found}; {do}")
        self.what, self.found, self.do = what, found, do

    def pack(self) -> dict[str, str]:
        """As a Reply's ``error``."""
        return {"what": self.what, "found": self.found, "do": self.do}

    @staticmethod
    def unpack(error: Mapping[str, Any]) -> ControlError:
        """From a Reply's ``error``."""
        return ControlError(*(str(error.get(key, "")) for key in ("what", "found", "do")))


@dataclass(frozen=True, slots=True)
class Method:
    """One method: ``acts`` = it changes something, so only the cluster's own user may call it; ``required`` and
    ``optional`` arguments are strings."""

    name: str
    acts: bool = False
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("status"),
            Method("workers"),
            Method("sessions"),
            Method("snapshot"),
            Method("kill_session", acts=True, required=("session",), optional=("reason",)),
            Method("stop", acts=True, optional=("reason",)),
            Method("worker_stop", acts=True, required=("worker",), optional=("reason",)),
        )
    }
)


def check(method: str, arguments: Mapping[str, Any], may_act: bool) -> Method:
    """The method that is asked for.

    Raises:
        ControlError: unknown, with wrong arguments, or not for this caller.
    """
    known = METHODS.get(method)
    if known is None:
        raise unknown("method", method, METHODS)
    for key, value in arguments.items():
        if key not in known.required + known.optional:
            raise unknown(f"argument of {method}", key, known.required + known.optional)
        if type(value) is not str:
            raise ControlError(f"{method} with {key}={str(value)[:40]}", f"a {type(value).__name__}", "give a string")
    missing = [key for key in known.required if key not in arguments]
    if missing:
        raise ControlError(method, f"no {' and '.join(missing)} given", f"name the {missing[0]}")
    if known.acts and not may_act:
        raise ControlError(
            method, "the cluster belongs to another user, or was reached over tcp", "ask its owner, on its host"
        )
    return known


def unknown(kind: str, name: str, known: Iterable[str]) -> ControlError:
    """The error for a name that isn't known, with the nearest one and all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    known_names = f"known: {', '.join(names) or 'none'}"
    return ControlError(
        f"{kind} {name[:60]!r}", "no such thing", f"did you mean {near[0]}? {known_names}" if near else known_names
    )
