"""The thirteen checks, in the order of the steps in Deeplearning4j's guide "Performance Issues"."""

from etl.doctor.check import Check
from etl.doctor.checks.batch_size import BatchSize
from etl.doctor.checks.cpus import OtherProcesses, Threads
from etl.doctor.checks.data_type import DataType
from etl.doctor.checks.forward_pass import Fallback, SharedModel
from etl.doctor.checks.hardware import BackendInUse, CpuExtensions, VendorKernels
from etl.doctor.checks.loading import LoadingBottleneck
from etl.doctor.checks.memory import GarbageCollection, MemoryReuse
from etl.doctor.checks.network import NetworkSize
from etl.doctor.checks.ranks import LearningRate, RankBatches, WaitForRanks

CHECKS: tuple[Check, ...] = (
    BackendInUse(),
    VendorKernels(),
    LoadingBottleneck(),
    GarbageCollection(),
    BatchSize(),
    SharedModel(),
    DataType(),
    MemoryReuse(),
    NetworkSize(),
    Fallback(),
    CpuExtensions(),
    OtherProcesses(),
    Threads(),
)
# Further checks of a training that runs on several ranks.
RANK_CHECKS: tuple[Check, ...] = (WaitForRanks(), LearningRate(), RankBatches())
