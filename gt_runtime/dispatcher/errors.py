"""The dispatcher's own error: a stream that can't go on."""

from __future__ import annotations


class StreamError(Exception):
    """What a client sent makes no sense; its session ends, nobody else notices.

    Attributes are those of ``messages.Refused``: what was asked, what was found, what to do.
    """

    def __init__(
        self, asked: str, found: str, do: str = "this is an error of the client library: please report it"
    ) -> None:
        super().__init__(f"{asked}: {found}; {do}")
        self.asked, self.found, self.do = asked, found, do
