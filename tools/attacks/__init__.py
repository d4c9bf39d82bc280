"""Floods a real gateway on loopback and measures what they cost another client: `python -m tools.attacks --list`.

For development only. Every process is started and stopped here, listens on 127.0.0.1 and attacks nothing else.
"""
