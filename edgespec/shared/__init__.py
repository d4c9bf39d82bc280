"""Modules of both worker and gateway around their cores: settings, folders, keys, pairing codes, control socket.

Unlike `edgespec.core` they use files and sockets. They import nothing of `edgespec` but `core` and each other.
"""
