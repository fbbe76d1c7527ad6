"""What is wrong with a store, for those who open any."""


class StoreError(Exception):
    """The store can't be used; the message is for the operator."""
