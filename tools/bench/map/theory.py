"""The closed forms of *Speculation at a Distance* (arXiv 2606.25091), with passes that are batched over clients.

One client's tokens a second, for acceptance a, chains of γ, a target pass t_v and a draft step t_d;
E(γ) = (1 - a^(γ+1)) / (1 - a) tokens a round. Hosts take no time.

    plain          1 / t_v
    co-located     E(γ) / (γ t_d + t_v)
    capacity       1 + γ t_d / t_v                        clients of a saturated target, at the same rate for each
"""

from __future__ import annotations

from edgespec_lab.sim.theory import expected_tokens
from tools.bench.map.machine import GAMMAS, Place


def plain(place: Place) -> float:
    """Tokens a second of one client."""
    return 1e3 / place.pass_ms(place.clients)


def colocated(place: Place, gamma: int) -> float:
    """The same with γ draft steps, all clients in one batch."""
    n = place.clients
    window_ms = gamma * place.step_ms(n) + place.pass_ms(n * (gamma + 1))
    return expected_tokens(place.acceptance, gamma) * 1e3 / window_ms


def best(place: Place) -> tuple[int, float]:
    """The best γ and its tokens a second; 0 for plain decoding."""
    every = {gamma: colocated(place, gamma) for gamma in GAMMAS} | {0: plain(place)}
    gamma = max(every, key=lambda one: every[one])
    return gamma, every[gamma]


def capacity(place: Place, gamma: int) -> float:
    """How many more clients a saturated target serves where others draft."""
    return 1 + gamma * place.draft_ms / place.target_ms


def saturated(place: Place, gamma: int) -> int:
    """Clients whose chains fill a pass up to the compute limit."""
    return place.limit // (gamma + 1)
