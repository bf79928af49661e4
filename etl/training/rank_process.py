"""Runs as a program: one rank of `fit_parallel`, started by torch's elastic agent.

Its arguments are the folder of the job, and the id of the process that called `fit_parallel`.
"""

from __future__ import annotations

import os
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.training.fit import FitResult
    from etl.training.parallel import Job


def main(folder: Path, parent: int) -> None:
    """Train, and write the result if this is rank 0. An error goes to the file that the agent has named."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Before libraries count the CPUs to start their threads.
    _use_own_cpus(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    from etl.measuring.server import end_with_parent

    if sys.platform == "linux":
        end_with_parent()
        if os.getppid() != parent:  # it has ended before
            return
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from etl.functions import search_folders
    from etl.images.settings import take_over
    from etl.training.parallel import JOB, PROGRESS, RESULT
    from etl.training.progress import STARTING, VARIABLE, own_progress
    from etl.training.ranks import ERROR_FILE, record_failure

    os.environ[VARIABLE] = str(folder / PROGRESS)
    own_progress(rank).set(STARTING)
    try:
        folders, pillow, content = pickle.loads((folder / JOB).read_bytes())  # noqa: S301 - written by the parent
        search_folders(folders)
        job = pickle.loads(content)  # noqa: S301
        take_over(pillow)  # after the imports of the job's modules, which may have settings of their own
        result = _train(job)
        if rank == 0:
            (folder / RESULT).write_bytes(pickle.dumps(result))
    except Exception as error:  # noqa: BLE001 - the parent raises it
        if not Path(os.environ[ERROR_FILE]).exists():  # else `fit` has told more
            record_failure(error, f"rank {rank} of {world_size}, while starting")
        # Not by the end of the program, at which torch may wait for ranks that have ended.
        sys.stdout.flush()
        os._exit(1)


def _use_own_cpus(rank: int, ranks: int) -> None:
    if not hasattr(os, "sched_setaffinity"):
        return
    from etl.measuring.ranks import cpus_of_rank  # loads no library

    os.sched_setaffinity(0, cpus_of_rank(sorted(os.sched_getaffinity(0)), rank, ranks))


def _train(job: Job) -> FitResult:
    import torch
    import torch.distributed as dist

    from etl.iterators import AsyncIterator
    from etl.strategies import close_loader
    from etl.training.compute import seed_everything
    from etl.training.fit import fit
    from etl.training.ranks import join, leave
    from etl.training.step import unwrapped
    from etl.training.synchronisation import wrapped_part
    from presave.random_seeds import BaseSeeds, seed_process

    options: dict[str, Any] = dict(job.options)
    limit = timedelta(seconds=2 * job.timeout)
    ranks, backend = join(options.pop("backend"), limit)
    # Equal on all ranks, which make the same model and divide the same records.
    seed_everything(job.seed)
    model = job.make_model()
    if wrapped_part(unwrapped(model)) is not None:
        raise ValueError(
            "make_model has sharded the model, and fit_parallel returns the whole one: start the ranks with torchrun, "
            "call etl.fit in each, and save the model with torch.distributed.checkpoint"
        )
    batches: Any = job.make_iterator()
    # Then different ones, for augmentations and dropout; after a restart, too.
    seed_process(BaseSeeds(job.seed, job.seed, job.seed), ranks.rank, os.environ.get("TORCHELASTIC_RESTART_COUNT"))
    torch.manual_seed(torch.initial_seed())  # seeds the device, too
    if job.prefetch_size and getattr(batches, "async_supported", False):
        batches = AsyncIterator(batches, job.prefetch_size, timeout=job.timeout)
    result = fit(model, batches, backend=backend, **options)
    close_loader(batches)
    if ranks.rank == 0:
        state = unwrapped(model).state_dict()  # extra state may be anything
        result.state = {name: each.cpu() if isinstance(each, torch.Tensor) else each for name, each in state.items()}
    dist.barrier()
    leave()
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
