"""What a log line says of an unexpected exception: its type and where it was raised, never its text.

The text of a foreign exception may quote what it failed on: a prompt, an answer, a key.
"""

from __future__ import annotations

PACKAGES = ("cloud_gateway", "edgespec")


def describe_fault(error: BaseException) -> str:
    """For example `ValueError at edgespec/core/processing.py:130`: the deepest place in our own packages, if any."""
    places = list(_places(error))
    ours = [place for place in places if place.startswith(PACKAGES)]
    place = ours[-1] if ours else places[-1] if places else "an unknown place"
    return f"{type(error).__name__} at {place}"


def _places(error: BaseException) -> list[str]:
    places, step = [], error.__traceback__
    while step is not None:
        places.append(f"{_inside_package(step.tb_frame.f_code.co_filename)}:{step.tb_lineno}")
        step = step.tb_next
    return places


def _inside_package(path: str) -> str:
    """The path from our package on; of other files the last two parts, so that no folder of the machine is named."""
    parts = path.split("/")
    starts = [i for i, part in enumerate(parts[:-1]) if part in PACKAGES]
    return "/".join(parts[starts[-1] :] if starts else parts[-2:])
