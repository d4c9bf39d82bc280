"""What measures the parts: `tools/parts/NAME` leaves with the part. No other file of the tools names one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.fuzz.decoder import Decoder, Stored
from tools.lossless.cases import Method
from tools.parts import (
    audit,
    function_calling,
    log_probabilities,
    mdns,
    peer_relay,
    predicted_outputs,
    rejection,
    request_traces,
    structured_output,
)

METHODS: tuple[Method, ...] = (rejection.METHOD,)
"""Methods of verification that parts bring, for `python -m tools.lossless`."""
STORED: tuple[Mapping[str, Stored], ...] = (audit.STORED, peer_relay.STORED)
"""Files that parts read, for `python -m tools.fuzz`."""
DECODERS: tuple[Mapping[str, Decoder], ...] = (
    function_calling.DECODERS,
    mdns.DECODERS,
    peer_relay.DECODERS,
    request_traces.DECODERS,
    structured_output.DECODERS,
)
"""Decoders of what other people, machines and models send to parts, for the same."""
PARAMETERS: tuple[bytes, ...] = (
    function_calling.CHAT,
    log_probabilities.CHAT,
    predicted_outputs.CHAT,
    structured_output.CHAT,
)
"""Chats with parameters that parts serve, for the same."""
READINGS: tuple[Callable[[object], None], ...] = (log_probabilities.check_reading,)
"""Checks of what parameters read of the target's rows, for the same."""
