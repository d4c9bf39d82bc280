"""Replay at modelled step times over real sockets: the real gateway, worker and link around engines that sleep."""
