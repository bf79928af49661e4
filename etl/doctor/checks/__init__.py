"""The thirteen causes of slow training, in the order of the documents' steps."""

from etl.doctor.check import Check
from etl.doctor.checks.backend import BackendInUse
from etl.doctor.checks.batch_size import BatchSize
from etl.doctor.checks.data_type import DataType
from etl.doctor.checks.extensions import CpuExtensions
from etl.doctor.checks.fallback import Fallback
from etl.doctor.checks.garbage import GarbageCollection
from etl.doctor.checks.kernels import VendorKernels
from etl.doctor.checks.loading import LoadingBottleneck
from etl.doctor.checks.memory_reuse import MemoryReuse
from etl.doctor.checks.network import NetworkSize
from etl.doctor.checks.others import OtherProcesses
from etl.doctor.checks.sharing import SharedModel
from etl.doctor.checks.threads import Threads

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
