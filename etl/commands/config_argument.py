"""The argument `--config FILE`: a configuration, and the other arguments that it stands for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etl.commands.source_arguments import source_options
from etl.configuration import SIZE, Configuration


def add_config_argument(parser: argparse.ArgumentParser, described: str, *positionals: argparse.Action) -> None:
    parser.add_argument(
        "--config",
        action=_Config,
        positionals=positionals,
        type=Path,
        metavar="FILE",
        help=f"a file of `etl tune --toml`, which tells {described}",
    )


class _Config(argparse.Action):
    """Stores the file, and lets `positionals` be left out.

    With `nargs="?"`, Python's argparse would take them for left out if an option stands between them.
    """

    def __init__(self, *, positionals: Sequence[argparse.Action], **options: Any) -> None:
        super().__init__(**options)
        self._positionals = positionals

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, *__: Any) -> None:
        setattr(namespace, self.dest, values)
        for each in self._positionals:
            each.required = False


def fill(arguments: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """Give arguments that were left out, and so are None, their values of `values`."""
    for name, value in values.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def fill_from(configuration: Configuration, arguments: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """Give arguments that were left out the values of a configuration.

    `values` are further ones, by argument. A format or compression of None is left to the command line. Raises
    `ValueError` that names both if an argument was given that the configuration contradicts.
    """
    values = {
        "source": configuration.source,
        "size": SIZE if configuration.size is None else configuration.size,
        "split": configuration.split,
        "pipeline": configuration.pipeline,
        **values,
    }
    settled = ("split", "pipeline", "until")  # None is a value of these, the default one
    given = {name: getattr(arguments, name) for name in values}
    options = source_options(arguments)
    configured = {name: value for name, value in values.items() if value is not None or name in settled}
    configured.update((name, configuration.table_options.get(name)) for name in options)
    for name, value in configured.items():
        own = {**given, **options}[name]
        if own is not None and not _is_same(name, own, value):
            said = "nothing about it" if value is None else f"{value}"
            raise ValueError(
                f"{_shown(name, own)} contradicts {configuration.file}, which says {said}; leave one of them out, or "
                "edit the file"
            )
    fill(arguments, values)


def _shown(name: str, value: Any) -> str:
    """Return an argument as it was given on the command line."""
    if name == "header":
        return "--no-header"
    option = name.upper() if name in ("source", "store") else f"--{name.replace('_', '-')}"
    if value is True:
        return option
    return f"{option} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def _is_same(name: str, own: Any, value: Any) -> bool:
    """Return True if a value of the command line, which may be text or a path, is that of the file."""
    if name in ("source", "store"):
        return str(own) == str(value) or Path(own).resolve() == Path(value).resolve()
    if isinstance(own, list) and isinstance(value, (list, tuple)):
        return [*map(str, own)] == [*map(str, value)]
    return bool(own == value or str(own) == str(value))
