"""The ranks of a training: what this process is among those that `torch.distributed` connects."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from etl.iterators import BatchIterator
from etl.sources.identity import digest_difference
from etl.training.backends import Backend, choose_device, import_torch
from etl.training.backends import backend as find_backend
from presave.files import UNFINISHED

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
# Set by torchrun and other launchers.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# torch's agent has its store before it starts ranks; one that was killed is not looked for any longer.
AGENT_TIMEOUT = timedelta(seconds=30)
# Between two looks for the answer of rank 0: little beside the start of a rank, and little work for the store.
LOOK_SECONDS = 0.05
OTHER_ORDER = (
    "all ranks must divide the same records in the same order, or some records come twice in an epoch and others never"
)


class RankError(RuntimeError):
    """Rank `rank` of a training has raised, was killed or hung. The message says so, and what it was doing."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.rank)


@dataclass(frozen=True)
class Ranks:
    """One rank, and what it does together with the others. Alone, nothing is sent.

    All ranks must call the methods that send in the same order.

    Attributes
    ----------
    rank : int
        This process, from 0 to `world_size - 1`.
    world_size : int
        Number of processes.
    device : torch.device or None
        Where values must be to be sent: the device of this rank for NCCL, otherwise the CPU. None if it is alone.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    @property
    def is_alone(self) -> bool:
        """True if there is no other rank."""
        return self.world_size == 1

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, which can be any that pickle."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.world_size
        import_torch().distributed.all_gather_object(values, value)
        return values

    def sum(self, *values: float) -> list[float]:
        """Return the sum over all ranks of each value."""
        if self.is_alone:
            return list(values)
        torch = import_torch()
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(sums)
        summed: list[float] = sums.tolist()
        return summed

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean over all ranks of a floating tensor, on its device, in float32 or float64."""
        if self.is_alone:
            return value
        import torch

        dtype = torch.promote_types(value.dtype, torch.float32)
        total = value.detach().to(self.device, dtype, copy=True)
        torch.distributed.all_reduce(total)
        return (total / self.world_size).to(value.device)

    def first(self, value: Value) -> Value:
        """Return the value of rank 0, which can be any that pickles."""
        if self.is_alone:
            return value
        values: list[Any] = [value]
        import_torch().distributed.broadcast_object_list(values, 0, device=self.device)
        found: Value = values[0]
        return found

    def check_equal(self, what: str, value: object) -> None:
        """Raise `ValueError` on all ranks unless `value` is equal on all."""
        values = self.gather(value)
        if any(each != values[0] for each in values):
            listed = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(values))
            raise ValueError(
                f"all ranks must have the same {what}, or they would wait for each other forever: {listed}"
            )

    def share(self, iterator: BatchIterator) -> BatchIterator:
        """Return this rank's part of `iterator`: a shard, or `iterator` if that is this rank's part already.

        An iterable of another library is taken to be this rank's part.

        Raises
        ------
        ValueError
            If it is the part of another rank, or a DataLoader that gives all records to every rank.
        TypeError
            If it is a user's iterator without `shard`.
        """
        if self.is_alone:
            return iterator
        rank, world_size = getattr(iterator, "rank", 0), getattr(iterator, "world_size", 1)
        if world_size != 1 and (rank, world_size) != (self.rank, self.world_size):
            raise ValueError(f"batches are the part of rank {rank} of {world_size}, but this is {self}")
        if world_size != 1:
            return iterator
        user_loader = getattr(iterator, "user_loader", None)
        if user_loader is not None:
            if user_loader.undivided is not None:
                raise ValueError(f"each of {self.world_size} ranks would train on {user_loader.undivided}")
            return iterator
        part: Any = iterator.shard(self.rank, self.world_size)
        if part is None:  # from the protocol
            raise TypeError(
                f"{type(iterator).__name__} has no method shard(rank, world_size), which would give each of "
                f"{self.world_size} ranks its part"
            )
        shard: BatchIterator = part
        return shard

    def check_order(self, iterator: BatchIterator) -> None:
        """Raise `ValueError` on all ranks unless they divide the same records in the same order, as far as is known.

        `iterator` is the part of this rank. Iterators of etl tell what decides the order, and a `DistributedSampler`.
        """
        if self.is_alone:
            return
        first, *others = self.gather(getattr(iterator, "order_settings", {}))
        for rank, settings in enumerate(others, 1):
            for name in {**first, **settings}:
                of_first, of_rank = first.get(name), settings.get(name)
                if name != "digests" and of_first != of_rank:
                    raise ValueError(
                        f"{OTHER_ORDER}: rank 0 has {name}={of_first!r}, and rank {rank} has {name}={of_rank!r}"
                    )
            contents = digest_difference(first.get("digests", {}), settings.get("digests", {}))
            if contents:
                raise ValueError(f"{OTHER_ORDER}: rank {rank} has other records than rank 0: their {contents} differ")


class WaitedError(RankError):
    """A rank has waited in vain for another, at which the failure began."""


WAITED = f"{WaitedError.__name__}: "


def record_failure(error: BaseException, where: str) -> None:
    """Write `error` to the file that torch's elastic agent has named, if it has, so that the agent can report it.

    The file is there whole or not at all: the agent may end this process at any moment, and fails at half a file.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    text = f"{where}: {type(error).__name__}: {error}"
    has_waited = isinstance(error, DistError) or (type(error) is RuntimeError and "gloo/transport" in str(error))
    reported = (WaitedError if has_waited else RankError)(text, 0)
    path = os.environ.get(ERROR_FILE)
    if not path:
        get_error_handler().record_exception(reported)
        return
    os.environ[ERROR_FILE] = unfinished = path + UNFINISHED
    try:
        get_error_handler().record_exception(reported)
    finally:
        os.environ[ERROR_FILE] = path
    with contextlib.suppress(FileNotFoundError):  # a user's handler may report elsewhere
        os.replace(unfinished, path)


def find_ranks() -> Ranks:
    """Return what this process is among the ranks of its process group or launcher. No group is made."""
    dist = import_torch().distributed
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    if _is_launched():
        return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return Ranks()


def join(backend: Backend | str, timeout: timedelta | None = None) -> tuple[Ranks, Backend]:
    """Return what this process is among the ranks of its process group, and its device.

    In a process that torchrun or another launcher has started, the process group is made here unless there is one. It
    ends with the process.

    Parameters
    ----------
    backend : Backend or str
        As for `fit`. In a process with a LOCAL_RANK, "cuda" is the device of that number.
    timeout : timedelta, optional
        The longest wait for another rank, if the process group is made here. By default torch's own: half an hour on
        CPUs.

    Raises
    ------
    RuntimeError
        If there are more ranks on this machine than devices; and as `etl.backend`.
    ValueError
        If the environment names a rank of several, but not the address of the first.
    """
    dist = import_torch().distributed
    is_initialized = dist.is_available() and dist.is_initialized()
    if not is_initialized:
        _check_launcher()
    if not (is_initialized or (dist.is_available() and _is_launched())):
        return Ranks(), find_backend(backend) if isinstance(backend, str) else backend
    chosen = find_backend(own_device_name(backend)) if isinstance(backend, str) else backend
    if chosen.device.type == "cuda":
        import_torch().cuda.set_device(chosen.device)  # where NCCL and pickled values go
    if not is_initialized:
        kinds = "cpu:gloo,cuda:nccl" if chosen.device.type == "cuda" else "gloo"
        dist.init_process_group(kinds, timeout=timeout, **_rendezvous(timeout))
        atexit.register(leave)
    device = chosen.device if "nccl" in dist.get_backend() else import_torch().device("cpu")
    return Ranks(dist.get_rank(), dist.get_world_size(), device), chosen


def _check_launcher() -> None:
    """Raise `ValueError` if a launcher says that this is one of several ranks, and not where these meet."""
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    missing = " and ".join(name for name in LAUNCHED if name not in os.environ)
    if missing and rank is not None and world_size not in ("", "0", "1"):
        raise ValueError(
            f"RANK={rank} and WORLD_SIZE={world_size} make this one of several ranks, and without {missing} it would "
            "train alone, on all records: set that, too, start the ranks with torchrun, or remove RANK"
        )


def _is_launched() -> bool:
    return all(name in os.environ for name in LAUNCHED)


def _rendezvous(timeout: timedelta | None) -> dict[str, Any]:
    """Return what `init_process_group` needs to find the other ranks.

    After a restart, torch's elastic agent offers the store of the attempt before, with the addresses of processes that
    have ended: under gloo and torch 2.13, six of eight restarts failed or hung. So each attempt has its own names.
    """
    dist = import_torch().distributed
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world_size, is_master=False, timeout=AGENT_TIMEOUT)
    limit: timedelta = timeout or dist.constants.default_pg_timeout
    store.set_timeout(limit)
    attempt = agree_on_attempt(dist.PrefixStore("etl", store), rank, world_size, limit)
    return {"store": dist.PrefixStore(f"etl/{attempt}", store), "rank": rank, "world_size": world_size}


def agree_on_attempt(store: Any, rank: int, world_size: int, limit: timedelta) -> str:
    """Return a name that all ranks of this attempt get from `store`, and those of no other attempt.

    The number of restarts would not do: each agent counts its own, and none if it restarts because of another machine.
    So rank 0 draws the name. A rank may find that of the attempt before, and therefore takes a name only if rank 0 has
    listed what this rank has drawn.

    Raises `DistStoreError` if a rank waits for another longer than `limit`.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("attempt", own)
        others = [store.get(f"{own}/{other}").decode() for other in range(1, world_size)]
        store.set(f"{own}/ranks", " ".join(others))
        return own
    until = time.monotonic() + limit.total_seconds()
    while True:
        attempt: str = store.get("attempt").decode()
        store.set(f"{attempt}/{rank}", own)
        if store.check([f"{attempt}/ranks"]) and own in store.get(f"{attempt}/ranks").decode().split():
            return attempt
        if time.monotonic() > until:
            waited = f"rank {rank} of {world_size} has waited {limit.total_seconds():g} s for rank 0, and timed out"
            raise import_torch().distributed.DistStoreError(waited)
        time.sleep(LOOK_SECONDS)


def leave() -> None:
    """End the process group, with its threads.

    They would abort the process if one dropped a tensor while the interpreter ends. A `DistributedDataParallel` that is
    not collected yet keeps them running.
    """
    dist = import_torch().distributed
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def own_device_name(name: str) -> str:
    """Return the name of the device for this process if `name` leaves that open."""
    kind, index, _ = choose_device(name)
    local = os.environ.get("LOCAL_RANK")
    if kind != "cuda" or index is not None or local is None:
        return name
    devices = import_torch().cuda.device_count()
    needed = max(int(os.environ.get("LOCAL_WORLD_SIZE", 0)), int(local) + 1)
    if 0 < devices < needed:
        raise RuntimeError(
            f"{needed} ranks on this machine need as many CUDA devices, but there are {devices}: start fewer, use "
            "backend='cpu', or name the device if a rank sees its own alone, as in backend='cuda:0'"
        )
    return f"cuda:{local}"
