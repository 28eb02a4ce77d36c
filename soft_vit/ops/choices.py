"""Named options."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """value, if it is one of choices; otherwise a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(map(repr, choices))}.")
    return value
