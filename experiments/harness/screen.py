"""Markdown on a terminal: laid out where there is room, as it is where there is not."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown

_WIDE = 160  # columns


def show(text: str) -> None:
    """Print it."""
    console = Console()
    if console.is_terminal and console.width >= _WIDE:
        console.print(Markdown(text))
    else:
        print(text)
