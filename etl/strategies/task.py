"""The task of a strategy: what it is asked to load, and with what. Needs numpy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from etl.functions import call_by_name

if TYPE_CHECKING:
    from typing import Self

    from etl.strategies.settings import Value


@dataclass(frozen=True)
class Task:
    """The task of a strategy that is compared with others: all that its function can ask for by parameter name.

    A function gets what its parameters name, `def load(path, batch_size, workers)`, or with one parameter of another
    name the whole task, `def load(task)`.

    Attributes
    ----------
    path : str
        Folder or file of the records. It holds `records` records if the source is a folder of images, and the whole
        source otherwise.
    source : sequence of records
        The records as the comparison's own strategies read them, or the user's own data set: `len(source)` and
        `source[i]`.
    pipeline : Pipeline
        Stages that turn a record of `source` into training arrays.
    batch_size : int
        Records in a batch. The last batch of each worker may have fewer.
    dtype : str
        Dtype of the features, such as "float32".
    seed : int
        Seed for shuffling and random transforms.
    epoch : int
        Number of the first epoch.
    records : int
        Records of an epoch.
    cpus : int
        CPUs for loading and compute together; the process is bound to them.
    workers : int
        CPUs to load with: threads or worker processes. That of `settings`, if it has one.
    rank, world_size : int
        The part of the records to load: 0 and 1 for all of them.
    folder : str
        Folder for files of the strategy. It is empty before `prepare`, and kept until the comparison ends.
    settings : dict of str to str, int, float, bool or None
        Values chosen for this run, of settings that the function declares, by name; none unless something is tuned. A
        function can ask for each of them by parameter name; the parameter has a default.

    Raises
    ------
    ValueError
        If `settings` have a value of an attribute that the comparison sets for all strategies.
        When `path`, `source` or `pipeline` is read and there is none. The message says why.

    Examples
    --------
    >>> def dataloader(task: etl.Task) -> torch.utils.data.DataLoader:
    ...     return torch.utils.data.DataLoader(task.source, task.batch_size, shuffle=True, num_workers=task.workers)
    >>> report = etl.compare("photos", ["raw", dataloader])  # doctest: +SKIP
    """

    batch_size: int
    dtype: str
    seed: int
    epoch: int
    records: int
    cpus: int
    workers: int
    folder: str
    rank: int = 0
    world_size: int = 1
    settings: Mapping[str, Value] = field(default_factory=dict, hash=False)
    # Called when the attribute is read, since opening a source may take long, or be impossible.
    open_path: Callable[[], str] | None = None
    open_source: Callable[[], Any] | None = None
    open_pipeline: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        fixed = sorted({*NAMES} & {*self.settings} - {"workers"})
        if fixed:
            raise ValueError(f"the setting {fixed[0]!r} cannot be chosen: it is the same for all strategies")
        if "workers" in self.settings:
            object.__setattr__(self, "workers", self.settings["workers"])

    @property
    def path(self) -> str:
        """Folder or file of the records."""
        return str(self._opened("path", self.open_path))

    @property
    def source(self) -> Any:
        """The records."""
        return self._opened("source", self.open_source)

    @property
    def pipeline(self) -> Any:
        """Stages that turn a record of `source` into training arrays."""
        return self._opened("pipeline", self.open_pipeline)

    def at_epoch(self, epoch: int) -> Self:
        """Return the task of a later epoch."""
        return replace(self, epoch=epoch)

    def call(self, function: Callable[..., Any]) -> Any:
        """Call `function` with what its parameters ask for.

        Raises
        ------
        ValueError
            If it asks for something that no task has.
        """
        chosen = {name: value for name, value in self.settings.items() if name not in NAMES}
        return call_by_name(function, {name: partial(getattr, self, name) for name in NAMES}, self, chosen)

    def _opened(self, name: str, opens: Callable[[], Any] | None) -> Any:
        if opens is None:
            raise ValueError(f"this task has no {name} in this process")
        return opens()


NAMES = ("path", "source", "pipeline", *(each.name for each in fields(Task) if not each.name.startswith("open_")))
