"""How much is done for each figure."""

# Before anything of a sample is timed: allocators, caches and thread pools then are as in the middle of an epoch.
WARM_UP_BATCHES = 2
# Compute alone: so many steps, or more until so many seconds have gone.
FEWEST_STEPS, COMPUTE_SECONDS = 3, 0.3
# Equal weights that were trained on equal batches have equal losses after any number of steps.
CHECKED_STEPS = 3
TIMELINE_BATCHES = 12
HARNESS_BATCHES = 50
# Of batches whose shapes differ as many are kept to compute on as have room.
RESIDENT_NBYTES = 256 << 20
