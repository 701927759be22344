"""The errors that are about files and captures rather than about an argument's value."""


class MxstatsError(Exception):
    """Base of every error that mxstats raises about the world outside its arguments."""


class StoreError(MxstatsError):
    """An activation store, or one shard of it, is missing, truncated, altered or foreign."""


class CaptureError(MxstatsError):
    """A capture did not see what it was asked to see."""
