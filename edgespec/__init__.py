"""The edge side of edgespec: a daemon that drafts for speculative decoding elsewhere."""

__version__ = "0.1.0"
