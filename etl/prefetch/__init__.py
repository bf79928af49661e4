"""Who makes batches ahead of the caller: threads, or processes over shared memory."""
