"""Named options, and the choice between eager PyTorch and the kernels in Triton."""

from typing import Literal

Backend = Literal["eager", "triton"]

BACKENDS = ("eager", "triton")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """value, if it is one of choices; otherwise a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(map(repr, choices))}.")
    return value


def takes_triton(backend: Backend | None, device_type: str, unsupported: str | None) -> bool:
    """Whether Triton computes a case; unsupported says why it cannot, as the end of a sentence, None that it can.

    backend None takes Triton on a GPU where it can, and never on a CPU. ValueError where `triton` is asked for and
    cannot.
    """
    if backend is None:
        return device_type == "cuda" and unsupported is None
    if check_choice("backend", backend, BACKENDS) == "triton" and unsupported is not None:
        raise ValueError(f"backend='triton' {unsupported}; use backend='eager', or None to choose by the case.")
    return backend == "triton"
