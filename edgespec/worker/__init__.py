"""The worker daemon: drafting loop, link to the gateway, discovery, pairing, configuration."""
