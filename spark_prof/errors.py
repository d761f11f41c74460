"""The exceptions that this package raises on purpose."""

__all__ = ["CommandError", "SparkProfError"]


class SparkProfError(Exception):
    """Root of every exception that spark-prof raises on purpose."""


class CommandError(SparkProfError):
    """A message for the person at the command line, and the exit code that goes with it.

    The message is one line that states the fact and the way out.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
