"""The messages of the pairing exchange, the one-time code, and why a pairing can fail (machines: exchange.py).

    4821-copper-lantern-otter-7305        which code, the secret words, which gateway

256 words, one per value of a random byte: three words carry 24 bits, against at most five attempts in 120 s. Any two
words differ in at least two letters and in their first four, so that one typing error never makes another word. A wrong
word from the list does not match the last digits, which is detected before anything is sent.
"""

from __future__ import annotations

import difflib
import enum
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from edgespec.core.errors import PairingError
from edgespec.core.protocol.messages import (
    Bytes32,
    Bytes64,
    Message,
    Name,
    Version,
    decoded,
)

MIN_NAMEPLATE = 1000
MAX_NAMEPLATE = 9999
"""The right nameplate with wrong words burns the code. A source has eight attempts in the 120 s of a window, so that
with four digits it takes about 1000 sources to burn one code; with two digits it took a dozen.
"""
CHECK_DIGITS = 4
"""13 bits that identify the gateway: one key in 10,000 of a rogue fits, and a worker compares at most 80 keys (64
announced, 16 dialled). The rogue then has 13 bits of the words and one attempt at the other 11 (SPAKE2), which is no
better than one attempt at all 24.
"""
CHECK_NUMBERS = 10_000
MAX_PAIRING_BYTES = 1024
"""No pairing message is longer; shells refuse longer ones unread."""

Spake = Annotated[bytes, Meta(min_length=33, max_length=33)]


CODE_DOMAIN = b"edgespec/2 pairing code\0"
"""The same in all versions of the protocol from 2 on: a worker of another version has to find the gateway that shows
the code before either can say which of them is older."""


class Reason(enum.StrEnum):
    """Why a pairing was refused; the closed set travels in `Refused` and labels logs and metrics."""

    WINDOW = "window"
    EXPIRED = "expired"
    BURNT = "burnt"
    NAMEPLATE = "nameplate"
    DELAYED = "delayed"
    BUSY = "busy"
    VERSION = "version"
    CODE = "code"
    KEY = "key"
    PROTOCOL = "protocol"
    STORAGE = "storage"
    ABANDONED = "abandoned"


_ASK = "ask for a new code with `cloud-gateway pair`, or with the command that showed this one"
SENTENCES: Mapping[Reason, str] = {
    Reason.WINDOW: f"the gateway is not waiting for a worker; {_ASK}",
    Reason.EXPIRED: f"the code has expired; {_ASK}",
    Reason.BURNT: f"five attempts failed and the gateway stopped pairing; {_ASK}",
    Reason.NAMEPLATE: "the code is not the one that the gateway shows, or no longer; take the one shown now",
    Reason.DELAYED: "too many attempts from this address failed; wait a minute and try again",
    Reason.BUSY: "another worker is being paired at this moment; try again in a few seconds",
    Reason.VERSION: "worker and gateway share no protocol version; update the older one, the code is still valid",
    Reason.CODE: "the code is wrong, or something between the two sides interferes; take the code shown now",
    Reason.KEY: "the other side's key is not valid or not its own; the code is used up, take the one shown now",
    Reason.PROTOCOL: "the other side broke the pairing protocol; the code is used up, take the one shown now",
    Reason.STORAGE: "the gateway could not store the worker's key (its log says why); nothing was paired",
    Reason.ABANDONED: "the connection ended before pairing was complete; try again with the code shown now",
}
"""The meaning of each reason to the person at the worker, and what to do."""


class PairingFailed(PairingError):
    """Pairing ended without success; `reason` is the closed label, the text names the remedy."""

    def __init__(self, reason: Reason, detail: str = "", address: str = "") -> None:
        where = f" at {address}" if address else ""
        why = f" ({detail})" if detail else ""
        super().__init__(f"Pairing failed{where}: {SENTENCES[reason]}{why}.")
        self.reason = reason
        self.detail = detail

    def at(self, address: str) -> PairingFailed:
        """The same, saying at which address it happened."""
        return PairingFailed(self.reason, self.detail, address)


class Start(Message, tag="pair-start", frozen=True):
    """Worker to gateway: who it is, and its half of SPAKE2."""

    version: Version
    nameplate: Annotated[int, Meta(ge=MIN_NAMEPLATE, le=MAX_NAMEPLATE)]
    worker_key: Bytes32
    name: Name
    spake: Spake


class Reply(Message, tag="pair-reply", frozen=True):
    """Gateway to worker: who it is, its half of SPAKE2, and the version that both will speak."""

    version: Version
    gateway_key: Bytes32
    name: Name
    spake: Spake


class Confirm(Message, tag="pair-confirm", frozen=True):
    """Both ways: knowledge of the code (MAC over transcript and signature), possession of the key (signature)."""

    mac: Bytes32
    signature: Bytes64


class Accepted(Message, tag="pair-accepted", frozen=True):
    """Both ways: the sender has checked the other's `Confirm`; from the gateway also that it has stored the worker."""

    mac: Bytes32


class Refused(Message, tag="pair-refused", frozen=True):
    """Both ways, last message: pairing has failed. The receiver has its own text for each reason."""

    reason: Reason


PairingMessage = Start | Reply | Confirm | Accepted | Refused
_DECODER: msgspec.msgpack.Decoder[PairingMessage] = msgspec.msgpack.Decoder(PairingMessage)


def decode_pairing(data: bytes) -> PairingMessage:
    """One message off the wire. Raises RemoteProtocolError (reason `malformed`), whatever the bytes are."""
    return decoded(_DECODER.decode, data, "a message of a pairing")


@dataclass(frozen=True, slots=True)
class Code:
    """The one-time code: `nameplate` identifies it, `words` are the secret, `check` identifies the gateway."""

    nameplate: int
    words: tuple[str, ...]
    check: int

    def __str__(self) -> str:
        return f"{self.nameplate}-{'-'.join(self.words)}-{self.check:0{CHECK_DIGITS}}"

    def fits(self, spki_hash: bytes) -> bool:
        """Whether the gateway with this TLS key can be the one that shows the code; one in 10,000 others fits too."""
        return self.check == check_number(self.nameplate, self.words, spki_hash)


def check_number(nameplate: int, words: Sequence[str], spki_hash: bytes) -> int:
    """The last digits of a code, from the SHA-256 of the gateway's public TLS key and the rest of the code.

    The words are part of it so that nobody can search for a key with the right digits beforehand: this takes the code.
    `spki_hash` has a fixed length, so that the concatenation is unambiguous.
    """
    text = f"{nameplate}-{'-'.join(words)}"
    digest = hashlib.sha256(CODE_DOMAIN + spki_hash + text.encode()).digest()
    return int.from_bytes(digest, "big") % CHECK_NUMBERS


WORDS: tuple[str, ...] = tuple(
    """
    acorn album amber anchor ankle anvil apple apron atlas attic autumn badge bagel baker bamboo banjo basil basket
    beach beaver berry birch bison blanket blossom bonfire border bottle branch brick bridge broom bucket buffalo
    butter cabin cactus camel candle canoe canvas carpet castle cedar cello chalk cherry chess chimney circus cliff
    clover cobalt cobweb cocoa comet compass copper coral cotton cousin cradle crayon cricket crystal cupboard
    curtain daisy dancer desert diamond dinner dolphin dragon eagle easel echo elbow elephant engine eraser fabric
    falcon feather fence fiddle flamingo flute forest fossil fountain frost galaxy gallery garden garlic gecko giant
    ginger giraffe glacier globe goblet gopher granite grape gravel guitar hammer harvest hazel hedge helmet heron
    hockey honey horizon iceberg igloo insect island ivory jacket jaguar jelly jigsaw journal jungle juniper kayak
    kennel kettle kitchen koala ladder ladle lagoon lantern lemon lentil leopard lilac linen lizard lobster lumber
    magnet mango maple marble meadow melon mirror mitten monkey mosaic muffin museum napkin nectar needle nickel
    nutmeg oasis ocean olive onion orbit orchid otter oyster palace panda paper parrot peanut pebble pelican pencil
    pepper piano picnic pigeon pillow pirate planet plum poppy potato prism puddle pumpkin puzzle quartz quilt
    rabbit radish rainbow raven ribbon river robin rocket ruby safari salmon sandal saturn scarf sequoia shadow
    shovel silver sketch skunk snail sparrow spider spoon squash starfish sugar sunset syrup table temple thimble
    thistle thunder ticket tiger tomato tractor trumpet tulip tundra tunnel turtle umbrella unicorn valley vanilla
    velvet violin volcano waffle wagon walnut walrus whisper window winter yacht yogurt zebra zenith
""".split()
)
CODE_WORDS = 3


def new_code(entropy: Callable[[int], bytes], spki_hash: bytes, avoid: int) -> Code:
    """A fresh code from `entropy` (bytes wanted -> random bytes), with a nameplate other than `avoid`.

    `spki_hash`: SHA-256 of the public TLS key of the gateway that shows it.
    """
    span = MAX_NAMEPLATE - MIN_NAMEPLATE  # the avoided one is left out; not a secret, so a slight bias is no matter
    nameplate = MIN_NAMEPLATE + int.from_bytes(entropy(8), "big") % span
    nameplate += nameplate >= avoid > 0
    words = tuple(WORDS[byte] for byte in entropy(CODE_WORDS))
    return Code(nameplate, words, check_number(nameplate, words, spki_hash))


def parse_code(text: str) -> Code:
    """Parses a typed code; capitals, spaces and missing hyphens are accepted.

    Raises PairingError for what cannot be a code, before anything is sent, so that a slip does not use the code up.
    """
    head, *words = [part for part in re.split(r"[^0-9a-z]+", text.lower()) if part] or [""]
    if not re.fullmatch(r"[1-9][0-9]{3}", head):
        raise PairingError(f"{_form(text)} it must begin with the four digits that `cloud-gateway pair` shows.")

    tail = words.pop() if words and words[-1].isdecimal() else ""
    if len(words) != CODE_WORDS:
        raise PairingError(f"{_form(text)} it has {len(words)} words after the first number, not {CODE_WORDS}.")
    if len(tail) != CHECK_DIGITS:
        raise PairingError(f"{_form(text)} it must end with the four digits that `cloud-gateway pair` shows.")

    for word in words:
        if word not in _KNOWN:
            close = difflib.get_close_matches(word, WORDS, n=1)
            if close:
                hint = f"did you mean `{close[0]}`?"
            else:
                hint = "check it against what `cloud-gateway pair` shows."
            raise PairingError(f"`{word}` is not a word of pairing codes; {hint}")

    return Code(int(head), tuple(words), int(tail))


_KNOWN = frozenset(WORDS)


def _form(text: str) -> str:
    return f"`{text[:60]}` is not a pairing code such as 4821-{'-'.join(WORDS[:CODE_WORDS])}-7305:"
