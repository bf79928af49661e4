"""Loading of batches ahead of the caller, in threads or in processes over shared memory."""
