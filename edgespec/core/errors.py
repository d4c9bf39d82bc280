"""Every error that a user can see: whose fault it is, what to do, and the exit code of the process.

```
EdgespecError                     exit  fault (75, ours, where no other is given: a restart may help)
├── ConfigError                     78  operator   a configuration value is missing or wrong
├── ModelError                      66  operator   a model file is missing, corrupt or unsuitable
├── TokenizerMismatch               65  operator   draft and target do not share a tokenizer
├── AddressError                    71  operator   an address cannot be bound or reached
├── NoGatewayError                  69  operator   no gateway was found or none answers
├── MissingPackageError             69  operator   a package of an extra is not installed
├── PairingError                    77  operator   wrong, expired or burnt code; revoked key
├── KeyStoreError                   73  operator   keys cannot be read or written
├── ClientError                     64  client     an API request that cannot be served as asked
├── LibraryError                    70  operator   llama.cpp crashes, hangs or computes wrongly on this machine
├── LocalProtocolError              75  ours       this side tried to break the protocol: a bug
└── RemoteProtocolError             76  peer       the other side broke the protocol; ends the link
```

The text of an error is the one sentence that the user sees, in the terminal, the log and the API alike.
Exit codes follow sysexits.h, so that systemd and scripts can distinguish them.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it cannot decode; the last two for bad UTF-8 and for values nested too deeply."""


class EdgespecError(Exception):
    """Base of all errors that edgespec raises on purpose."""

    exit_code: ClassVar[int] = 75


class ConfigError(EdgespecError):
    """A configuration value is missing or wrong; the text names the key, the line and the allowed values."""

    exit_code = 78


class ModelError(EdgespecError):
    """A model file is missing, corrupt or cannot be used for this purpose."""

    exit_code = 66


class LibraryError(EdgespecError):
    """llama.cpp crashes, hangs or computes wrongly on this machine; it has to be compiled again."""

    exit_code = 70


class TokenizerMismatch(EdgespecError):
    """Draft and target use different tokenizers; the text names both digests."""

    exit_code = 65


class AddressError(EdgespecError):
    """An address is in use, cannot be bound, or cannot be parsed."""

    exit_code = 71


class NoGatewayError(EdgespecError):
    """No gateway was found and none is configured, or the configured one is not reachable."""

    exit_code = 69


class MissingPackageError(EdgespecError):
    """A package that an extra of edgespec brings is not installed; the text has the command that installs it."""

    exit_code = 69


class PairingError(EdgespecError):
    """Pairing failed, or a key is not (or no longer) paired."""

    exit_code = 77


class KeyStoreError(EdgespecError):
    """Keys cannot be read, are too widely readable, or cannot be written."""

    exit_code = 73


class ClientError(EdgespecError):
    """An API request that cannot be served as asked; carries what OpenAI's error object needs."""

    exit_code = 64

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def refusal(param: str, why: str, code: str = "invalid_value") -> ClientError:
    """400 for one parameter of an API request; `why` begins in lower case and has no full stop."""
    return ClientError(f"Invalid '{param}': {why}.", param=param, code=code)


class LocalProtocolError(EdgespecError):
    """This side tried to do what the protocol forbids in its present state."""


class RemoteProtocolError(EdgespecError):
    """The peer sent what the protocol forbids.

    `reason` is a short, closed label for logs and metrics (for example `bad-signature`, `sequence`, `shape`);
    `close_code` is the WebSocket close code that ends the link (docs/protocol.md).
    """

    exit_code = 76

    def __init__(self, reason: str, message: str, *, close_code: int = 4400) -> None:
        super().__init__(message)
        self.reason = reason
        self.close_code = close_code
