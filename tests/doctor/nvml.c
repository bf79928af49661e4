/* A driver with two GPUs, of which the second is busy with two processes: the part of NVML that the doctor asks. */

#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7 };

static const int GPUS[2] = {0, 1};

struct memory { unsigned long long total, available, used; };
struct utilization { unsigned int gpu, memory; };
struct process { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; };

static int number_of(const int *device) { return *device; }

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { (void)error; return "an error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, const int **device) { *device = &GPUS[index]; return SUCCESS; }

int nvmlDeviceGetName(const int *device, char *name, unsigned int length) {
    strncpy(name, number_of(device) ? "Simulated B" : "Simulated A", length);
    return SUCCESS;
}

int nvmlDeviceGetUUID(const int *device, char *uuid, unsigned int length) {
    strncpy(uuid, number_of(device) ? "GPU-bbbb" : "GPU-aaaa", length);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(const int *device, struct memory *memory) {
    memory->total = 80000000000ULL;
    memory->used = number_of(device) ? 30000000000ULL : 1000000000ULL;
    memory->available = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(const int *device, struct utilization *utilization) {
    utilization->gpu = number_of(device) ? 90 : 0;
    utilization->memory = 0;
    return SUCCESS;
}

/* The processes are 1, which runs on every system, and one that has no name here. */
int nvmlDeviceGetComputeRunningProcesses_v3(const int *device, unsigned int *count, struct process *processes) {
    unsigned int found = number_of(device) ? 2 : 0;
    if (found == 0) {
        *count = 0;
        return SUCCESS;
    }
    if (processes == 0 || *count < found) {
        *count = found;
        return INSUFFICIENT_SIZE;
    }
    memset(processes, 0, found * sizeof *processes);
    processes[0].pid = 1;
    processes[0].used = 4000000000ULL;
    processes[1].pid = 4000000;
    processes[1].used = 25000000000ULL;
    *count = found;
    return SUCCESS;
}
