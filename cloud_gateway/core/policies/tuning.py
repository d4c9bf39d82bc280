"""The tuned numbers of policy `adaptive`. Half or one and a half of any changes the median over places by about 1 % at
most, as `tools.sim tuning` of commit f3727f0c found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Each with its reason; dev/decisions/NNN has what was measured."""

    draft_pass_share: float = 0.3
    """Of the passes of co-located k = 2, under `balanced`: a choice of the product; 0.45 took the same time (124)."""
    length: float = 128.0
    """Tokens of a completion before any has ended (013: counts for the first one only)."""
    length_weight: float = 0.2
    """Of the newest completion in the mean length (013)."""
    stay_rate: float = 0.9
    """Prior probability that the target stays in the worker's tree for one more token (013)."""
    prior_tokens: float = 16.0
    """What this prior counts for, and that of the rate of local runs (013)."""
    run_rate: float = 0.25
    """Prior share of tokens at which a local run is worth most (013)."""
    worker_leaves: int = 4
    """Leaves whose children the worker's next frame is expected to bring (013)."""
    match: float = 0.85
    """Prior probability that a draft's best token is the target's: between the demo's two drafts, .75 and .95."""
    named: float = 0.95
    """The same of its best four."""
    prior: float = 4.0
    """Observations that these two count for (013)."""
    trust: float = 32.0
    """Candidates for which a draft's own probabilities count as right before any was judged."""
    worker_trust: float = 8.0
    """The same of workers, whose calibration is not seen here (160)."""
    carried: float = 40.0
    """Most observations carried to the next completion, so that it soon counts for more than those before (013)."""
    min_open: float = 0.05
    """Share of a node's future that must be unnamed for another look by the local draft."""
    plausible: float = 0.4
    """Match rate of the workers from which on it stands for that of a local draft that was not tried yet (160)."""
    unlikely: float = 0.5
    """Share of a node's future beyond which a worker's children leave it to the local draft (160)."""
    certain: float = 0.98
    """Greatest probability that a frame comes at all: a worker may be stopped at any time (012)."""
    min_tokens_judged: float = 8.0
    """Tokens over which the worker's way is measured before it is judged, and those of a probe (012)."""
    max_tokens_lost: float = 2.5
    """Tokens that could have come meanwhile without the worker, for which it is left before that."""
    prior_alone_tokens: float = 24.0
    """Tokens for which the estimate of the pace alone counts: with 8, a few tokens by chance ended it."""
    decay_per_token: float = 0.25
    """The same for each token with the worker, so that what was measured before does not stand for ever."""
    max_tokens_unready: float = 24.0
    """The same while the worker reads the prompt, which is soon over where it is well (012)."""
    max_tokens_remembered: float = 60.0
    """Tokens over which a pace is a mean (012)."""
    first_interval: float = 64.0
    """Tokens before the first probe; 1.3 times slower than the gateway alone, it costs 4 % of them (012)."""
    trial_tokens: float = 20.0
    """Tokens of a trial without the worker: with 12, luck decided (124)."""
    trial_threshold: float = 0.75
    """Share of the estimate of the pace alone that the worker's must exceed for a trial: recorded drafts took 0.62 of
    it or more, since it counts each token as independent of the one before (124)."""
    margin: float = 0.03
    """How much slower the worker's way has to be to be left: less is within what a pace of 40 tokens varies (012)."""
    margin_balanced: float = 0.06
    """The same under `balanced`, twice that under `offload`, since passes here count: with 0.03 a worker 20 ms
    away that took 0.93 of the time alone was left for a third of the tokens."""


TUNING = Tuning()
