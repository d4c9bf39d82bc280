"""The link port: the server of workers' links, their registry, pairing, mDNS adverts."""
