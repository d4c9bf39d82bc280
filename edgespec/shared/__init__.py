"""What worker and gateway both need around their cores: settings, folders, keys, pairing codes, the control socket.

Unlike `edgespec.core` these modules touch files and sockets. They import nothing of `edgespec` but `core` and each
other.
"""
