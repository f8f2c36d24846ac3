"""Palettes: a style for each role a piece of text can have.

Colour never says anything alone: states carry a symbol and a word. ``mono`` uses the terminal's own two colours with
bold, dim and reverse; ``contrast`` is black, white and hues that the common kinds of colour blindness keep apart
(Okabe and Ito).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from gt_top.styles.roles import Role


@dataclass(frozen=True)  # no slots: styles are made once and kept
class Palette:
    """One look. ``coloured`` False: the terminal's own two colours only."""

    name: str
    dark: bool
    coloured: bool
    background: str
    surface: str
    colours: Mapping[str, str]
    styles: Mapping[Role, Style]

    def style(self, role: Role) -> Style:
        """A role's own style, nothing under it."""
        return self.styles[role]

    @cached_property
    def on_base(self) -> Mapping[Role, Style]:
        """Each role's style on the background."""
        return {role: self.base + style for role, style in self.styles.items()}

    @cached_property
    def on_cursor(self) -> Mapping[Role, Style]:
        """Each role's style in the selected row."""
        return {role: self.base + self.styles[Role.CURSOR] + style for role, style in self.styles.items()}

    def style_colour(self, role: str) -> str:
        """The colour of a role as ``#rrggbb``."""
        return self.colours[role]

    @property
    def base(self) -> Style:
        """What lies under everything: text on the background."""
        return self.styles[Role.TEXT] + Style(bgcolor=self.background) if self.coloured else Style.null()

    def theme(self) -> Theme:
        """The same as a Textual theme, for borders, inputs and backgrounds."""
        c = self.colours
        return Theme(
            name=self.name,
            primary=c["accent"],
            secondary=c["dim"],
            accent=c["accent"],
            warning=c["warn"],
            error=c["bad"],
            success=c["good"],
            foreground=c["text"],
            background=self.background,
            surface=self.surface,
            panel=self.surface,
            boost=self.surface,
            dark=self.dark,
            ansi=not self.coloured,
            variables={
                **({} if self.coloured else BUILTIN_THEMES["ansi-dark"].variables),
                "gt-rule": c["faint"],
                "gt-dim": c["dim"],
                "gt-cursor": c["cursor"],
                "input-cursor-background": c["accent"],
                "input-cursor-foreground": self.background,
            },
        )


def _coloured(name: str, dark: bool, background: str, surface: str, colours: dict[str, str]) -> Palette:
    styles = {role: Style(color=colours[role]) for role in Role if role in colours}
    styles[Role.STRONG] = Style(color=colours["strong"], bold=True)
    styles[Role.CURSOR] = Style(bgcolor=colours["cursor"])
    return Palette(name, dark, True, background, surface, colours, styles)


DARK = _coloured(
    "dark",
    True,
    "#0e1217",
    "#171d25",
    {
        "text": "#c8d0da", "strong": "#f0f4f8", "dim": "#7f8b99", "faint": "#2c3540", "accent": "#7fb0f5",
        "good": "#7cc79a", "busy": "#8fb8ff", "warn": "#e3b567", "bad": "#f27d7d", "util": "#5bb8b0",
        "memory": "#7d9be6", "rate": "#a78bdc", "cursor": "#1b2738", "stale": "#5c6673", "track": "#242d38",
    },
)  # fmt: skip

LIGHT = _coloured(
    "light",
    False,
    "#fcfcfb",
    "#f0f2f4",
    {
        "text": "#2a3138", "strong": "#0c1116", "dim": "#68727d", "faint": "#d3d9df", "accent": "#0b57c2",
        "good": "#1c7a43", "busy": "#2a62c9", "warn": "#8f5d00", "bad": "#c4282d", "util": "#2a938b",
        "memory": "#5577d0", "rate": "#8a5fd0", "cursor": "#dfeafb", "stale": "#9aa3ac", "track": "#dde2e7",
    },
)  # fmt: skip

CONTRAST = _coloured(
    "contrast",
    True,
    "#000000",
    "#101010",
    {
        "text": "#ffffff", "strong": "#ffffff", "dim": "#c8c8c8", "faint": "#6a6a6a", "accent": "#56b4e9",
        "good": "#1fd6a2", "busy": "#56b4e9", "warn": "#f0e442", "bad": "#ff8a3d", "util": "#1fd6a2",
        "memory": "#56b4e9", "rate": "#e69fd0", "cursor": "#003a66", "stale": "#8c8c8c", "track": "#4a4a4a",
    },
)  # fmt: skip


def _mono() -> Palette:
    names = ("text", "strong", "dim", "faint", "accent", "good", "warn", "bad", "cursor")
    styles = {role: Style() for role in Role}
    styles |= {role: Style(dim=True) for role in (Role.DIM, Role.FAINT, Role.TRACK, Role.STALE)}
    styles |= {role: Style(bold=True) for role in (Role.STRONG, Role.ACCENT, Role.WARN, Role.BAD)}
    styles[Role.CURSOR] = Style(reverse=True)
    colours = dict.fromkeys(names, "ansi_default")
    return Palette("mono", True, False, "ansi_default", "ansi_default", colours, styles)


MONO = _mono()
PALETTES: dict[str, Palette] = {p.name: p for p in (DARK, LIGHT, CONTRAST, MONO)}
