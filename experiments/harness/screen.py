"""This module lays Markdown out on a wide terminal, and prints it as it is elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown

_WIDE = 160  # columns


def show(text: str) -> None:
    """Print a text in Markdown."""
    console = Console()
    if console.is_terminal and console.width >= _WIDE:
        console.print(Markdown(text))
    else:
        print(text)
