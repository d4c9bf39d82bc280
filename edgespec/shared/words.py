"""The words of pairing codes, and the text form of a code.

    4821-copper-lantern-otter-7305        which code, the secret words, which gateway

256 words, one per value of a random byte: three words carry 24 bits, against at most five attempts in 120 s. Any two
words differ in at least two letters and in their first four, so that one typing error never makes another word. A wrong
word from the list does not match the last digits, which is detected before anything is sent.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from edgespec.core.errors import PairingError
from edgespec.core.pairing.messages import CHECK_DIGITS, MAX_NAMEPLATE, MIN_NAMEPLATE, Code, check_number

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


def new_code(entropy: Callable[[int], bytes], spki_hash: bytes, avoid: int = 0) -> Code:
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
            hint = f"did you mean `{close[0]}`?" if close else "check it against what `cloud-gateway pair` shows."
            raise PairingError(f"`{word}` is not a word of pairing codes; {hint}")
    return Code(int(head), tuple(words), int(tail))


_KNOWN = frozenset(WORDS)


def _form(text: str) -> str:
    return f"`{text[:60]}` is not a pairing code such as 4821-{'-'.join(WORDS[:CODE_WORDS])}-7305:"
