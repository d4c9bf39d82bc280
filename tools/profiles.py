"""Kinds of network paths: each number beside the name of its source, or `ASSUMED`.

The link model has no reordering: the bytes of a TCP connection stay in order. Jitter is the mean of an exponential
extra delay, which is also the mean difference between two such delays, as tools that measure jitter report it. No
publication was found that measures it in one direction on such paths, so each jitter is assumed.
"""

from __future__ import annotations

from edgespec.lab.link_model import LinkModel

ASSUMED = "assumed"
SOURCES = {
    "RFC 8868": "Evaluating Congestion Control for Interactive Real-Time Media, IETF, 2021, "
    "https://www.rfc-editor.org/rfc/rfc8868: in its list of network parameters, a one-way delay of 0 to 1 ms is the "
    "lowest class, and no loss the lowest of five.",
    "IEEE 802.3ab": "Physical layer for 1000 Mb/s over four pairs of category 5 cable (1000BASE-T), IEEE, 1999, "
    "https://www.ieee802.org/3/ab/: 1 Gbit/s in both directions.",
    "FCC 13": "Thirteenth Measuring Broadband America Fixed Broadband Report, FCC, 2024, measured in September and "
    "October 2022, "
    "https://data.fcc.gov/download/measuring-broadband-america/2023/"
    "2023-Fixed-Measuring-Broadband-America-Report.pdf: median idle round trips of cable providers from 12 to 24 ms.",
    "FCC 12": "Twelfth Measuring Broadband America Fixed Broadband Report, FCC, measured in 2021, chart 8, "
    "https://www.fcc.gov/reports-research/reports/measuring-broadband-america/"
    "measuring-fixed-broadband-twelfth-report: its lowest class of packet loss at peak times ends at 0.4 %.",
    "FCC 706": "2024 Section 706 Report, FCC, 2024, as summarised at https://www.benton.org/blog/how-fcc-got-10020: "
    "fixed broadband sends 20 Mbit/s or more (and receives 100).",
    "Ofcom": "Measuring mobile broadband performance in the UK: 4G and 3G, Ofcom, 2015, measured in five cities at "
    "the end of 2014, as summarised at "
    "http://www.mobilenewscwp.co.uk/2015/04/02/ofcom-4g-meeting-consumer-expectations/: on 4G a mean round trip of "
    "53.1 ms, and a mean of 13.6 Mbit/s sent.",
    "Codavel": "Real-world latency and packet loss, Codavel, undated, "
    "https://blog.codavel.com/performance-report-defining-use-cases: 0.5 % loss on 4G in the USA (elsewhere 0.2 %).",
    "Verizon": "Service Level Agreement, Internet Dedicated Services, Verizon, undated, "
    "https://www.verizon.com/business/en-sg/terms/us/products/internet/sla: a monthly mean round trip of 90 ms at "
    "most between New York and London.",
    "Cogent": "Network Services Service Level Agreement, North America and Europe, Cogent, 2007, as quoted at "
    "https://www.lawinsider.com/dictionary/cogent-network: a monthly mean packet loss of 0.1 % at most.",
}
"""Title, organisation, year, address, and what it says."""

PATHS = {
    "campus": {
        "rtt_s": (0.001, "RFC 8868"),
        "jitter_s": (0.0001, ASSUMED),
        "loss": (0.0, "RFC 8868"),
        "bandwidth_bps": (1e9, "IEEE 802.3ab"),
    },
    "cable": {
        "rtt_s": (0.024, "FCC 13"),
        "jitter_s": (0.002, ASSUMED),
        "loss": (0.004, "FCC 12"),
        "bandwidth_bps": (20e6, "FCC 706"),
    },
    "lte": {
        "rtt_s": (0.053, "Ofcom"),
        "jitter_s": (0.010, ASSUMED),
        "loss": (0.005, "Codavel"),
        "bandwidth_bps": (13.6e6, "Ofcom"),
    },
    "transatlantic": {
        "rtt_s": (0.090, "Verizon"),
        "jitter_s": (0.002, ASSUMED),
        "loss": (0.001, "Cogent"),
        "bandwidth_bps": (100e6, ASSUMED),
    },
}
"""For each path the fields of its model: the number, and the key of its source. docs/results/paths.md shows them."""

PROFILES = {
    name: LinkModel(**{field: number for field, (number, _) in numbers.items()}) for name, numbers in PATHS.items()
}
