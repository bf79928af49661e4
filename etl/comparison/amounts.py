"""How much is done for each figure."""

# Before anything of a sample is timed: allocators, caches and thread pools then are as in the middle of an epoch.
WARM_UP_BATCHES = 2
# Before the trials of a split, which shows no figures, only which one is the fastest.
SPLIT_WARM_UP_BATCHES = 2
# Compute alone: so many steps, or more until so many seconds have gone, fewer where there is little time.
FEWEST_STEPS, COMPUTE_SECONDS, COMPUTE_SHARE = 1, 0.3, 1 / 400
# Equal weights that were trained on equal batches have equal losses after any number of steps.
CHECKED_STEPS = 2
TIMELINE_BATCHES = 8
HARNESS_BATCHES = 50
# Of batches whose shapes differ as many are kept to compute on as have room.
RESIDENT_NBYTES = 256 << 20


def compute_seconds(budget_seconds: float) -> float:
    """For how long compute alone is measured, in a comparison of so many seconds."""
    return min(COMPUTE_SECONDS, budget_seconds * COMPUTE_SHARE)
