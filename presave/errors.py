"""What goes wrong with a store, said once."""


class StoreError(ValueError):
    """A store, or what was to be written into one, is not what it must be.

    The message names the store, the file or record, and what to do.
    """
