"""Random sequences of events for the machines of a request, at the gateway and at the worker, and for the limits of
ports, API keys, announcements and owners. As in `link_machines`, each yields what came of every event.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from cloud_gateway.core.limits.conduct import Conduct
from cloud_gateway.core.limits.quota import KeyLimits, Quotas, Visit
from cloud_gateway.core.limits.turns import Turns
from cloud_gateway.core.policies.actions import CatchUp, Costs, Draft, LinkView, Verify, Wait
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.registry import NAMES, make
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.events import TABLE, Status
from cloud_gateway.core.requests.generation import Bounds, Generation
from cloud_gateway.core.requests.remote_answer import RemoteAnswer
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.verification import SharedNoise
from edgespec.core.admission import Admission, AdmissionLimits, Admitted
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.ranking import Spread
from edgespec.core.drafting.shares import Part
from edgespec.core.errors import ClientError, RemoteProtocolError
from edgespec.core.pairing.announcements import MAX_ENTRIES, MAX_PER_HOST, Announcements
from edgespec.core.pairing.sources import MAX_DELAY_S, MAX_WAITING, Delays, Waiting
from edgespec.core.presence import REASONS, OwnerPolicy, Presence
from edgespec.core.protocol.messages import MAX_DEPTH, Open, Tree, check_tree_shape, levels
from edgespec.core.protocol.prefix import prefix_hash
from edgespec.core.protocol.ranges import MAX_ID
from tools.doubles.model import Rows
from tools.fuzz.frames import RandomWorker
from tools.fuzz.model import TableModel, table

VOCABULARY, TOKENS, CONTEXT = 17, 12, 24
PROMPT = (3, 1, 4, 1, 5, 9)
SOURCES = "abcdef"


def request(rng: random.Random) -> Iterator[str]:
    """A request at the gateway: every kind of event at any time, the decisions of any policy; plain decoding's text."""
    model = table(VOCABULARY, rng.randrange(2), rng.random() < 0.3)
    asked = GenerationRequest(PROMPT, TOKENS, ignore_eos=rng.random() < 0.5)
    policy = make(PolicySettings(name=rng.choice(NAMES), k=3))
    chosen = SharedNoise(asked.sampling, PROMPT, Spread(), None)
    machine = Generation(1, asked, policy, chosen, Bounds(CONTEXT, frozenset({0})), offload=rng.random() < 0.9)
    answer, emitted, ended, now = _plain(model), list[int](), 0, 0.0
    worker, curve, first = RandomWorker(rng, VOCABULARY, answer), StepCurve({1: 0.03}), len(PROMPT)
    while machine.status is not Status.FINISHED or rng.random() < 0.7:
        now += rng.choice((0.0, 0.001, 0.03, 3.0))
        step = _step(rng, machine, worker, curve, model, now)
        if step is None:
            yield "waits"
            continue
        before = machine.status
        if (before, type(step)) not in TABLE:
            _refused(machine, step, now)
            yield "not now"
            continue
        effects = machine.handle(step, now)
        for effect in effects:
            assert not ended, "something follows the end"
            ended += isinstance(effect, events.Finished)
            emitted += effect.event.tokens if isinstance(effect, events.Chosen) and effect.event else ()
            if isinstance(effect, events.Send) and isinstance(effect.body, Open):
                worker.next_id = 1
        assert list(answer[first : first + len(emitted)]) == emitted, "the text is not plain decoding's"
        assert ended == (machine.status is Status.FINISHED)
        yield f"{type(step).__name__} {machine.status.value}"


def _plain(model: TableModel) -> list[int]:
    tokens = list(PROMPT)
    while len(tokens) < CONTEXT + TOKENS:
        tokens.append(model.argmax(tokens))
    return tokens


def _refused(machine: Generation, step: Any, now: float) -> None:
    try:
        machine.handle(step, now)
    except ValueError:
        return
    raise AssertionError(f"{type(step).__name__} is taken in status {machine.status.value}")


def _step(
    rng: random.Random, machine: Generation, worker: RandomWorker, curve: StepCurve, model: TableModel, now: float
) -> Any:
    """What happens next; None where the policy waits."""
    if machine.status is Status.QUEUED and rng.random() < 0.5:
        return events.Admitted(rng.randrange(len(machine.reading)))
    if machine.status is Status.PREFILL and rng.random() < 0.5:
        return events.Read(rng.randint(1, len(machine.reading) - 1 - machine.prefilled))
    if machine.status is Status.DECODE and rng.random() < 0.6:
        return _decided(rng, machine, curve, model, now)
    who = rng.choice("vw")
    match int(rng.random() * 30):
        case 0 | 1 | 2:
            return events.WorkerChanged(who, rng.choice(("gone", "declined", "needed", "useless")))
        case 3:
            return events.WorkerChanged("", "none", "none")
        case 4:
            return events.Failed(rng.choice(("pass", "own-pass", "draft")), "x")
        case 5:
            return rng.choice(
                (events.Failed("speculation", "x"), events.Failed("speculation", "x", who), events.Ended("error", "x"))
            )
        case 6:
            return rng.choice(
                (
                    events.Ended("left"),
                    events.Ended("stopped"),
                    events.Spent("host", 0.1),
                    events.Spent("answer", name=who, worker=who, frame="used"),
                )
            )
        case 7:
            return events.Preempted()
        case 8 | 9 | 10 | 11:
            return events.WorkerChanged(who, "beside" if rng.random() < 0.3 else "assigned")
    frame = worker.frame(machine.tree.prefix, [len(machine.tree.prefix), rng.randint(0, len(machine.tree.prefix))])
    given = machine.assignments.of(who)
    epoch = given.epoch if given is not None and rng.random() < 0.9 else rng.randrange(4)
    return events.FrameArrived(who, replace(frame, epoch=epoch))


def _decided(rng: random.Random, machine: Generation, curve: StepCurve, model: TableModel, now: float) -> Any:
    link = LinkView(0.02, 0.03, 0.005, True) if machine.assignment and rng.random() < 0.8 else None
    local = rng.random() < 0.5
    action = machine.decide(
        link, Costs(curve, 0.005, rng.choice((0.0, 0.01)), 0.002, 4) if local else Costs(curve), now
    )
    match action:
        case Verify(nodes):
            flat = machine.flatten(machine.select(nodes))
            return events.Verified(flat, Rows(model, machine.tree.prefix.tokens, flat))
        case Draft(leaves):
            return events.Drafted(leaves[:4], [_proposal(rng) for _ in leaves[:4]])
        case CatchUp():
            return events.Spent("draft", 0.001, 1)
    assert isinstance(action, Wait) and action.until == action.until, "waits until no time"
    return None


def _proposal(rng: random.Random, size: int = VOCABULARY) -> Proposal:
    tokens = rng.sample(range(size), 4)
    return Proposal(tokens, sorted(rng.choice((0.0, 0.1, 3.0, 200.0)) for _ in tokens), rng.choice((0.0, 0.5, 2.8)))


def queued_answer(rng: random.Random) -> Iterator[str]:
    """An answer that a worker writes while its request waits, with any frames of its worker."""
    machine = RemoteAnswer(1, PROMPT, TOKENS, {0})
    worker = RandomWorker(rng, VOCABULARY, _plain(table(VOCABULARY, 0, False)))
    for _ in range(rng.randint(1, 60)):
        prefix = machine._tree.prefix
        frame = worker.frame(prefix, [len(prefix), rng.randint(0, len(prefix))])
        try:
            merged = machine.merge(replace(frame, epoch=rng.choice((1, 1, 1, 2))), "w")
        except RemoteProtocolError as error:
            yield error.reason
            return
        commit = machine.advance() if rng.random() < 0.7 else None
        assert len(machine.tokens) <= TOKENS and (commit is None or commit.prefix_hash == prefix_hash(prefix.tokens))
        yield "done" if machine.done else "committed" if commit else "fresh" if merged.fresh else "stale"


def worker_request(rng: random.Random) -> Iterator[str]:
    """A request at the worker: commits of any kind, draft steps and frames between them, any share of the branches."""
    length = rng.randint(0, 8)
    machine: Drafting = (
        BestFirst(1, 1, length, BestFirstRule(max_depth=rng.choice((1, MAX_DEPTH)), max_nodes=rng.choice((8, 512))))
        if rng.random() < 0.7
        else Drafting(1, 1, length, DraftRule(theta=rng.choice((0.0, 0.5, 100.0))))
    )
    sent: list[Tree] = []
    while True:
        match int(rng.random() * 4):
            case 0:
                known = list(machine.prefix.tokens)
                ahead = [node.token for node in machine.tree.most_probable(1, MAX_ID) if node.token >= 0]
                tokens = [rng.choice((*ahead, 0, 16, MAX_ID)) for _ in range(rng.choice((1, 1, 2, 9)))]
                start = len(known) if rng.random() < 0.95 else rng.choice((0, len(known) + 1, 2**32 - 1))
                digest = rng.choice((None, prefix_hash([*known, *tokens]))) if rng.random() < 0.95 else bytes(32)
                try:
                    matched = machine.commit(start, tokens, digest, chosen=rng.random() < 0.7)
                except RemoteProtocolError as error:
                    yield error.reason
                    return
                assert 0 <= matched <= len(tokens)
                yield "matched" if matched else "committed"
            case 1:
                leaves = machine.candidates()[:6]
                proposals = [_proposal(rng) for _ in leaves]
                if rng.random() < 0.1:  # a commit comes meanwhile
                    machine.commit(len(machine.prefix), [rng.randrange(VOCABULARY)])
                machine.record(leaves, proposals)
                yield "drafted" if leaves else "idle"
            case 2:
                frame = machine.delta() if machine.due(rng.random(), rng.random(), 0.02) else None
                if frame is not None:
                    sent = [*sent[-20:], frame]
                    check_tree_shape(frame, MAX_ID + 1)
                    assert levels(frame) <= MAX_DEPTH
                    assert all(one.first + len(one.tokens) <= frame.first for one in sent[:-1]), (
                        "a number is sent twice"
                    )
                yield "nothing to send" if frame is None else "sent"
            case _:
                count = rng.randint(1, 8)
                machine.part = Part(rng.randrange(count), count)
                yield "shared"


def admission(rng: random.Random) -> Iterator[str]:
    """Connections of a port that come, prove a key and go."""
    unproven = rng.randint(1, 8)
    limits = AdmissionLimits(
        unproven + rng.randrange(6), unproven, rng.randint(1, 8), rng.randint(1, 10), 4.0, 40, 50.0
    )
    machine, now, tickets = Admission(limits), 0.0, [0]
    while True:
        now += rng.choice((0.0, 0.0, 0.1, 3.0))
        match int(rng.random() * 4):
            case 0 | 1:
                verdict = machine.arrive(rng.choice(SOURCES), now)
                if isinstance(verdict, Admitted):
                    tickets = [*tickets[-30:], verdict.ticket]
                yield "admitted" if isinstance(verdict, Admitted) else verdict.reason
            case 2:
                yield "proven" if machine.prove(rng.choice(tickets)) else "no place"
            case _:
                machine.leave(rng.choice(tickets)) if rng.random() < 0.8 else machine.relieve()
                yield "left"
        assert machine.total <= limits.total and 0 <= machine.unproven <= limits.unproven
        assert machine.total == sum(machine._held.values())


def owner(rng: random.Random) -> Iterator[str]:
    """The sources of the owner's presence show anything, at any time of any clock."""

    def edge() -> float:
        return float(rng.randrange(0, 86_401, 900))

    policy = OwnerPolicy(
        rng.choice(("always", "never", "when-idle", "when-idle")),
        tuple((edge(), edge()) for _ in range(rng.randrange(3))),
        {name: rng.choice((0.0, 0.5, 30.0)) for name in REASONS if rng.random() < 0.5},
        rng.choice((0.0, 60.0)),
        rng.choice((0.0, 90.0, math.inf)),
    )
    machine, now = Presence(policy), 0.0
    values = (0.0, 1.0, -1.0, 1e300, math.inf, math.nan)
    while True:
        now += rng.choice((0.0, 0.5, 61.0, 4000.0))
        day_s = rng.random() * 86_400
        verdict = machine.look(now, day_s, {name: rng.choice(values) for name in REASONS if rng.random() < 0.7})
        assert verdict.drafting == (verdict.because is None) or not verdict.drafting
        assert verdict.wake_at >= now and verdict.since <= now, "a time that has passed"
        yield verdict.state.value


def announcements(rng: random.Random) -> Iterator[str]:
    """Names and hosts that anybody announces, and dials that fail."""
    machine: Announcements[int] = Announcements()
    while True:
        name, hosts = str(rng.randrange(200)), [str(rng.randrange(40)) for _ in range(rng.choice((1, 1, 2)))]
        match int(rng.random() * 8):
            case 0:
                machine.remove(name)
                yield "withdrawn"
            case 1:
                tried = rng.randrange(300)
                yield "failed" if machine.failed(lambda value, tried=tried: value % 7 == tried % 7) else "not there"  # type: ignore[misc]
            case _:
                yield "taken" if machine.put(name, hosts, rng.randrange(300)) else "no room"
        assert len(machine.values()) <= MAX_ENTRIES
        each = [host for entry in machine._entries.values() for host in entry.hosts]
        assert all(each.count(host) <= 2 * MAX_PER_HOST for host in set(each))


def pairing_sources(rng: random.Random) -> Iterator[str]:
    """Attempts at pairing from many addresses, and connections that wait."""
    delays, waiting, now = Delays(), Waiting[int](), 0.0
    while True:
        now += rng.choice((0.0, 0.5, 61.0, 700.0))
        source, one = rng.choice(SOURCES) + str(rng.randrange(4)), rng.randrange(50)
        match int(rng.random() * 3):
            case 0:
                delays.failed(source, now)
                yield "failed"
            case 1:
                yield "replaced" if waiting.enter(source, one) is not None else "entered"
            case _:
                waiting.leave(source, one)
                yield "left"
        assert 0 <= delays.wait_s(source, now) <= MAX_DELAY_S and len(waiting._waiting) <= MAX_WAITING


def api_keys(rng: random.Random) -> Iterator[str]:
    """What API keys have under way, and the tokens that they use."""
    limits = KeyLimits(rng.randint(1, 4), 1000, rng.choice((0, 60)))
    quotas, now = Quotas(limits), 0.0
    visits: dict[str, list[Visit]] = {key: [] for key in "abc"}
    while True:
        now += rng.choice((0.0, 1.0, 70.0))
        key = rng.choice("abc")
        mine = visits[key]
        try:
            match int(rng.random() * 5) if mine else 0:
                case 0:
                    mine.append(quotas.enter(key))
                case 1:
                    mine[-1].expect_answers(rng.randrange(6))
                case 2:
                    mine[-1].hold_bytes(rng.randrange(600))
                case 3:
                    mine[-1].reserve_tokens(rng.randrange(90), now)
                case _:
                    mine.pop(rng.randrange(len(mine))).end(rng.randrange(90))
            yield "taken"
        except ClientError as error:
            assert error.status == 429 and error.retry_after_s is not None and error.retry_after_s > 0
            yield str(error.code)
        account = quotas._accounts[key]
        assert account.answers == sum(visit._answers for visit in mine) <= limits.answers
        assert account.body_bytes == sum(visit._bytes for visit in mine) <= limits.body_bytes


def conduct(rng: random.Random) -> Iterator[str]:
    """What workers do, on behalf of which API keys; one key alone never has a worker quarantined."""
    keys = rng.randrange(4)
    machine, now, seen = Conduct(keys), 0.0, dict[str, set[Any]]()
    while True:
        now += rng.choice((0.0, 1.0, 4000.0))
        worker, key = rng.choice("vw"), rng.choice((None, *SOURCES)) if rng.random() < 0.1 else "a"
        if key is not None and rng.random() < 0.7:
            why = machine.drafted(worker, key, rng.choice((0.0, 9.0, 1e9)), rng.randrange(9), now)
        else:
            why = machine.fault(worker, rng.choice(("slow", "sequence")), key, now)
        seen.setdefault(worker, set()).add(key)
        if why:
            assert keys and (keys == 1 or seen[worker] != {"a"}), f"one API key quarantines: {why}"
            machine.forget(worker)
            seen.pop(worker)
        yield "quarantined" if why else "judged"


def turns(rng: random.Random) -> Iterator[str]:
    """Items of several API keys that wait for their turn."""
    machine, running, most = Turns[tuple[str, int]](), list[str](), rng.choice((None, 1, 2))
    while True:
        key = rng.choice("abc")
        match int(rng.random() * 4):
            case 0 | 1:
                machine.add(key, (key, rng.randrange(9)), most)
                yield "waits"
            case 2:
                taken = machine.take(lambda item: item[1] < 8)
                running += [taken[0]] if taken else []
                yield "begins" if taken else "none begins"
            case _:
                if running and rng.random() < 0.7:
                    machine.ended(running.pop())
                machine.remove(key, (key, rng.randrange(9)))
                yield "ended"
        assert all(machine._running[one] == running.count(one) <= (most or math.inf) for one in "abc")
        assert len(machine) == sum(map(machine.waiting, "abc"))
