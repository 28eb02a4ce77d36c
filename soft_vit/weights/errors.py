"""The one error of everything that keeps recorded weights from being used."""

__all__ = ["WeightsError"]


class WeightsError(RuntimeError):
    """Recorded weights cannot be had, or are not what is recorded; its message is one sentence for the user."""
