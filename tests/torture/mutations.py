"""Bytes that are nearly a file: what a seeded mutation makes of real ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

# What lengths, sizes and offsets are mistaken at.
MAGIC = (
    0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63,
    2**64 - 1,
)  # fmt: skip
TEXTS = (
    b"-1", b"0", b"1e999", b"nan", b"Infinity", b"4294967296", b"1152921504606846976", b"9223372036854775808",
    b"9" * 400, b"9" * 5000, b"null", b"[]", b"{}", b'""', b'"\\ud800"', b'"\\u0000"', b"../x", b"\0", b"\xff\xfe",
)  # fmt: skip
LONGEST_NBYTES = 1 << 16


def mutate(random: Random, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """`content` after one to four changes; `others` are what pieces are taken from."""
    mutated = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        random.choice(CHANGES)(random, mutated, others or (content,))
    return bytes(mutated[:LONGEST_NBYTES])


def flip(random: Random, content: bytearray, others: Sequence[bytes] = ()) -> None:
    """Flip one bit."""
    if content:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def _replace_byte(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    if content:
        content[random.randrange(len(content))] = random.choice(
            (0, 1, 0x20, 0x7F, 0x80, 0xFE, 0xFF, random.randrange(256))
        )


def _write_number(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    nbytes = random.choice((2, 4, 8))
    number = random.choice(MAGIC) % (1 << 8 * nbytes)
    place = random.randrange(len(content) + 1)
    content[place : place + nbytes] = number.to_bytes(nbytes, random.choice(("little", "big")))


def _write_text(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    """Another text in place of a number or a string, where there are such, or anywhere."""
    found = list(re.finditer(rb'[0-9]+|"[^"\n]*"', content))
    place = random.randrange(len(content) + 1)
    span = random.choice(found).span() if found else (place, place + 1)
    content[slice(*span)] = random.choice(TEXTS)


def _insert(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    place = random.randrange(len(content) + 1)
    content[place:place] = random.randbytes(random.choice((1, 2, 8)))


def _remove(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    place = random.randrange(len(content) + 1)
    del content[place : place + random.choice((1, 2, 8, 64))]


def _cut_off(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    del content[random.randrange(len(content) + 1) :]


def _repeat(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    place = random.randrange(len(content) + 1)
    content[place:place] = content[place : place + random.choice((1, 4, 32, 512))] * random.choice((1, 2, 20))


def _splice(random: Random, content: bytearray, others: Sequence[bytes]) -> None:
    other = random.choice(others)
    start, place = random.randrange(len(other) + 1), random.randrange(len(content) + 1)
    piece = other[start : start + random.choice((4, 32, 512))]
    content[place : place + random.choice((0, len(piece)))] = piece


CHANGES = (
    flip, flip, _replace_byte, _replace_byte, _write_number, _write_number, _write_text, _insert, _remove, _cut_off,
    _repeat, _splice,
)  # fmt: skip
