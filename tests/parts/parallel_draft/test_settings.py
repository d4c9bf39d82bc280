"""Settings that exclude the gateway's own worker are refused."""

from __future__ import annotations

import pytest

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts.parallel_draft import PART
from cloud_gateway.process.config import schema
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import parse

BESIDE = '[local_draft]\nmode = "async-local"\n'
INSIDE = GatewayPart("inside", drafts={"auto:quantised": None})


@pytest.mark.parametrize(
    ("parts", "text", "says"),
    [
        ([PART], "[local_draft]\ncpu = [1]", '`local_draft.mode` is "in-turn"'),
        ([PART], BESIDE + "cpu = [1]\n[daemon]\ncpu = [0, 1]", "which has [1] too"),
        ([PART], BESIDE + 'model = ""', "a model where `local_draft.mode` is"),
        ([INSIDE, PART], BESIDE, "it runs beside the target"),
        ([], BESIDE, "unknown key `local_draft.mode`"),
    ],
)
def test_values_that_exclude_it_are_refused(parts: list[GatewayPart], text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, schema(parts), "x.toml")
    assert says in str(error.value)


def test_a_model_and_cores_of_its_own_are_taken() -> None:
    settings = parse(BESIDE + "cpu = [1]\n[daemon]\ncpu = [0]", schema([PART]), "x.toml")
    assert settings.daemon.cpu == (0,)
