"""Texts from outside, such as names of files, as text that steers no terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line, with escapes for what would steer a terminal or reorder what it shows."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
