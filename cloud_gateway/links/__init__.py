"""The link port: the server of workers' links, their registry, pairing, mDNS adverts.

Public, by module:

- `advertise`: `Advertiser`
- `pairing`: `PairingDesk`
- `port`: `link_admission`, `LinkLimits`
- `registry`: `WorkerInfo`
- `server`: `Links`
"""
