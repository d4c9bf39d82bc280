"""Values that `[owner]` refuses, with the line and what is allowed."""

from __future__ import annotations

import pytest

from edgespec.core.errors import ConfigError
from edgespec.parts import all_parts
from edgespec.shared.settings import overridden, parse
from edgespec.worker.config import schema


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[owner]\nhours = ["09:00-17:00", "18-8"]',
            'a list, each item hours such as "18:00-08:00" (expected two times of',
        ),
        ("[owner]\nidle_s = -0.1", "`owner.idle_s` is -0.1, but must be a number from 0 to 86400"),
        ('[owner]\nsigns = ["mouse"]', 'a list, each item "battery", "cpu", "gpu", '),
        ("[owner]\nmetered = false", "`owner.metered` is no longer a setting; list the signs that count"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, schema(all_parts()), "x.toml")

    assert str(error.value).startswith("x.toml, line 2: ")
    assert says in str(error.value)


def test_a_number_that_is_left_out_is_refused_with_its_range() -> None:
    with pytest.raises(ConfigError, match="must be a number from 0 to 86400"):
        overridden(schema(all_parts())(), {"owner.idle_s": ""})
